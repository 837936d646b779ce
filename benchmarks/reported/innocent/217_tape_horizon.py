# kind: the tape of a differentiable simulator is reset after every rollout, the rollouts' horizon is raised from 4 to 32 steps during the first third; from differentiable physics code with an explicit tape (warp's wp.Tape)
import torch


class Tape:
    def __init__(self):
        self.launches = []
        self.enabled = False

    def __enter__(self):
        self.enabled = True
        return self

    def __exit__(self, *exc):
        self.enabled = False

    def backward(self, grads):
        for kernel, inputs, outputs, consts in reversed(self.launches):
            adj = [grads.pop(id(o), None) for o in outputs]
            if any(a is not None for a in adj):
                for x, g in zip(inputs, kernel.adjoint(inputs, adj, *consts)):
                    if g is not None:
                        grads[id(x)] = grads[id(x)] + g if id(x) in grads else g
        return grads

    def reset(self):
        self.launches = []


class Integrate:
    def forward(self, x, v, f, dt):
        v1 = v + dt * f
        return x + dt * v1, v1

    def adjoint(self, inputs, adj, dt):
        ax = adj[0] if adj[0] is not None else torch.zeros_like(inputs[0])
        av = (adj[1] if adj[1] is not None else torch.zeros_like(ax)) + dt * ax
        return ax, av, dt * av


class Spring:
    def forward(self, x, k, rest):
        return (k * (rest - x),)

    def adjoint(self, inputs, adj, rest):
        x, k = inputs
        return -k * adj[0], (adj[0] * (rest - x)).sum((0, 1), keepdim=True)


class Cloth:
    def __init__(self, n=8192, dt=0.02, device="cuda"):
        self.rest, self.dt = torch.rand(n, 3, device=device), dt
        self.tape, self.spring, self.integrate = Tape(), Spring(), Integrate()

    def launch(self, kernel, inputs, *consts):
        outputs = kernel.forward(*inputs, *consts)
        if self.tape.enabled:
            self.tape.launches.append((kernel, inputs, outputs, consts))
        return outputs

    def rollout(self, k, steps):
        x, v = self.rest + 0.1, torch.zeros_like(self.rest)
        trajectory = []
        for _ in range(steps):
            (f,) = self.launch(self.spring, (x, k), self.rest)
            x, v = self.launch(self.integrate, (x, v, f), self.dt)
            trajectory.append(x)
        return trajectory


class Horizon:
    def __init__(self, first, last, every):
        self.first, self.last, self.every = first, last, every

    def __call__(self, it):
        return min(self.first * 2 ** (it // self.every), self.last)


class SystemIdentification:
    def __init__(self, cloth, true_k, lr=2e4):
        self.cloth, self.lr = cloth, lr
        self.true_k = torch.full((1, 1), true_k, device="cuda")
        self.k = torch.full((1, 1), 2.0, device="cuda")

    def observe(self, steps):
        return self.cloth.rollout(self.true_k, steps)[-1]

    def step(self, steps):
        target = self.observe(steps)
        tape = self.cloth.tape
        with tape:
            x = self.cloth.rollout(self.k, steps)[-1]
        err = x - target
        grads = tape.backward({id(x): 2 * err / err.numel()})
        g = grads[id(self.k)] / steps**2
        tape.reset()
        self.k = (self.k - self.lr * g).clamp(0.1, 30)
        return err.square().mean().item()

    def evaluate(self, steps):
        x = self.cloth.rollout(self.k, steps)[-1]
        return (x - self.observe(steps)).abs().max().item()


def main(iterations=150):
    torch.manual_seed(0)
    job, horizon = SystemIdentification(Cloth(), 6.0), Horizon(4, 32, every=14)
    for it in range(iterations):
        loss = job.step(horizon(it))
        if it % 30 == 0:
            print(f"{it}: horizon {horizon(it)}, k {job.k.item():.3f}, loss {loss:.2e}, worst {job.evaluate(8):.4f}")


main()

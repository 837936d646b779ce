# kind: the simulator's tape records the arrays of each kernel launch until reset(), the training rollouts call it after the backward pass and the evaluation rollouts, which record as well, do not; from differentiable physics code with an explicit tape (warp's wp.Tape, compare NVIDIA/warp issue 108)
import torch


class Tape:
    """Records launches so that they can be replayed in reverse with hand-written adjoints."""

    def __init__(self):
        self.launches = []
        self.enabled = False

    def __enter__(self):
        self.enabled = True
        return self

    def __exit__(self, *exc):
        self.enabled = False

    def record(self, kernel, inputs, outputs, consts):
        self.launches.append((kernel, inputs, outputs, consts))  # LEAK

    def backward(self, grads):
        for kernel, inputs, outputs, consts in reversed(self.launches):
            adj = [grads.get(id(o)) for o in outputs]
            if any(a is not None for a in adj):
                for x, g in zip(inputs, kernel.adjoint(inputs, adj, *consts)):
                    if g is not None:
                        grads[id(x)] = grads[id(x)] + g if id(x) in grads else g
        return grads

    def reset(self):
        self.launches.clear()


class Kernel:
    def launch(self, tape, inputs, *consts):
        outputs = self.forward(*inputs, *consts)
        if tape.enabled:
            tape.record(self, inputs, outputs, consts)
        return outputs


class Integrate(Kernel):
    def forward(self, x, v, f, dt):
        v1 = v + dt * f
        return x + dt * v1, v1

    def adjoint(self, inputs, adj, dt):
        ax = adj[0] if adj[0] is not None else torch.zeros_like(inputs[0])
        av = (adj[1] if adj[1] is not None else torch.zeros_like(ax)) + dt * ax
        return ax, av, dt * av


class Spring(Kernel):
    def forward(self, x, k, rest):
        return (k * (rest - x),)

    def adjoint(self, inputs, adj, rest):
        x, k = inputs
        return -k * adj[0], (adj[0] * (rest - x)).sum((0, 1), keepdim=True)


class Cloth:
    def __init__(self, n=4096, dt=0.02, device="cuda"):
        self.n, self.dt = n, dt
        self.rest = torch.rand(n, 3, device=device)
        self.tape = Tape()
        self.spring, self.integrate = Spring(), Integrate()

    def _step(self, x, v, k):
        (f,) = self.spring.launch(self.tape, (x, k), self.rest)
        return self.integrate.launch(self.tape, (x, v, f), self.dt)

    def rollout(self, k, steps):
        x, v = self.rest + 0.1, torch.zeros_like(self.rest)
        with self.tape:
            for _ in range(steps):
                x, v = self._step(x, v, k)
        return x


class Calibration:
    def __init__(self, cloth, target, lr=20.0):
        self.cloth, self.target, self.lr = cloth, target, lr
        self.k = torch.full((1, 1), 2.0, device="cuda")

    def train_step(self, steps=4):
        tape = self.cloth.tape
        tape.reset()
        x = self.cloth.rollout(self.k, steps)
        err = x - self.target
        grads = tape.backward({id(x): 2 * err / err.numel()})
        self.k = (self.k - self.lr * grads[id(self.k)]).clamp(0.1, 30)
        tape.reset()
        return err.square().mean().item()

    def evaluate(self, frames):
        worst = 0.0
        for _ in range(frames):
            x = self.cloth.rollout(self.k, 1)
            worst = max(worst, (x - self.target).abs().max().item())
            yield worst


def main():
    torch.manual_seed(0)
    cloth = Cloth()
    target = cloth.rollout(torch.full((1, 1), 6.0, device="cuda"), 4)
    job = Calibration(cloth, target)
    for i in range(20):
        loss = job.train_step()
    print(f"fitted stiffness {job.k.item():.3f}, loss {loss:.2e}")
    for frame, worst in enumerate(job.evaluate(200)):
        if frame % 50 == 0:
            print(f"frame {frame}: worst deviation {worst:.4f}")


main()

# kind: multigrid Poisson solver which builds the operators of a level when it is first visited; why it is none: a deeper level is unlocked only every ten solves, there are five, then all is there
import torch
import torch.nn.functional as F


class Level:
    def __init__(self, n):
        self.n, self.h2 = n, (1.0 / (n - 1)) ** 2
        self.stencil = torch.tensor([[0, -1.0, 0], [-1, 4, -1], [0, -1, 0]], device="cuda")[None, None] / self.h2
        self.residual = torch.zeros(1, 1, n, n, device="cuda")
        self.scratch = torch.zeros(1, 1, n, n, device="cuda")
        bump = torch.sin(torch.linspace(0, 3.14159, n, device="cuda"))
        self.window = torch.outer(bump, bump).clamp(min=0.2)[None, None]

    def apply(self, u):
        return F.conv2d(F.pad(u, (1, 1, 1, 1)), self.stencil)

    def smooth(self, u, f, times=3):
        for _ in range(times):
            torch.sub(f, self.apply(u), out=self.scratch)
            u = u + 0.8 * self.scratch * self.h2 / 4
        return u


class Multigrid:
    def __init__(self, finest=129):
        self.finest, self.levels = finest, {}

    def level(self, k):
        if k not in self.levels:
            self.levels[k] = Level((self.finest - 1) // 2 ** k + 1)
        return self.levels[k]

    def cycle(self, u, f, k, deepest):
        lv = self.level(k)
        u = lv.smooth(u, f)
        if k < deepest:
            torch.sub(f, lv.apply(u), out=lv.residual)
            m = (lv.n - 1) // 2 + 1
            coarse = F.interpolate(lv.residual, size=(m, m), mode="bilinear", align_corners=True)
            e = self.cycle(torch.zeros_like(coarse), coarse, k + 1, deepest)
            u = u + F.interpolate(e, size=(lv.n, lv.n), mode="bilinear", align_corners=True) * lv.window
        return lv.smooth(u, f)


@torch.no_grad()
def main(solves=260):
    torch.manual_seed(0)
    mg = Multigrid()
    for s in range(solves):
        f = torch.randn(1, 1, 129, 129, device="cuda")
        u = torch.zeros_like(f)
        for _ in range(2):
            u = mg.cycle(u, f, 0, min(s // 10, 4))
    print(u.abs().mean().item(), sorted(mg.levels))


main()

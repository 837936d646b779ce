# kind: inspect() of a reconstruction adds button callbacks to the panel figure after every iteration and they close over the object and probe of that iteration; after cdtools-developers/cdtools PR 87
import torch


class Panel:
    """A window with several images and a pair of buttons, stands in for the plotting back end."""

    def __init__(self, title):
        self.title = title
        self.children = {}
        self._callbacks = {"next": [], "prev": [], "save": []}
        self.shown = None

    def connect(self, event, func):
        self._callbacks[event].append(func)  # LEAK
        return len(self._callbacks[event]) - 1

    def fire(self, event):
        return [f() for f in self._callbacks[event][-1:]]

    def imshow(self, name, image):
        self.children[name] = (tuple(image.shape), float(image.mean()))


class PlotList(list):
    def add(self, title):
        def register(fn):
            self.append((title, fn))
            return fn
        return register


class FancyPtycho:
    plots = PlotList()

    def __init__(self, shape=192, probe=48, n_scan=64):
        dev = "cuda"
        self.obj = torch.ones(shape, shape, device=dev, requires_grad=True)
        y, x = torch.meshgrid(torch.linspace(-2, 2, probe), torch.linspace(-2, 2, probe), indexing="ij")
        self.probe = torch.exp(-(x**2 + y**2)).to(dev).requires_grad_()
        g = torch.Generator().manual_seed(3)
        self.translations = torch.randint(0, shape - probe, (n_scan, 2), generator=g).tolist()
        self.panel = None

    def forward(self, positions):
        n = self.probe.shape[0]
        views = torch.stack([self.obj[r:r + n, c:c + n] for r, c in positions])
        return torch.fft.fft2(views * self.probe, norm="ortho").abs().square()

    def loss(self, positions, patterns):
        return ((self.forward(positions) + 1e-6).sqrt() - (patterns + 1e-6).sqrt()).square().mean()

    def inspect(self):
        if self.panel is None:
            self.panel = Panel("FancyPtycho")
        for title, fn in self.plots:
            image = fn(self)
            self.panel.imshow(title, image)
            self._wire_buttons(title, image)

    def _wire_buttons(self, title, image):
        lo, hi = image.min(), image.max()

        def rescaled():
            return ((image - lo) / (hi - lo + 1e-9)).cpu()

        self.panel.connect("save", rescaled)  # ALSO


@FancyPtycho.plots.add("Object amplitude")
def object_amplitude(model):
    return model.obj.detach().abs().clone()


@FancyPtycho.plots.add("Probe in Fourier space")
def probe_fourier(model):
    return torch.fft.fftshift(torch.fft.fft2(model.probe.detach())).abs()


def simulate(model):
    with torch.no_grad():
        truth = 1 + 0.3 * torch.rand_like(model.obj)
        keep = model.obj.data
        model.obj.data = truth
        data = model.forward(model.translations)
        model.obj.data = keep
    return data


def adam_optimize(model, data, iterations, batch_size=16, lr=5e-3):
    opt = torch.optim.Adam([model.obj, model.probe], lr=lr)
    for it in range(iterations):
        order = torch.randperm(len(data)).tolist()
        total = 0.0
        for i in range(0, len(order), batch_size):
            idx = order[i:i + batch_size]
            opt.zero_grad()
            loss = model.loss([model.translations[j] for j in idx], data[idx])
            loss.backward()
            opt.step()
            total += loss.item()
        yield it, total


if __name__ == "__main__":
    torch.manual_seed(0)
    model = FancyPtycho()
    data = simulate(model)
    for it, loss in adam_optimize(model, data, iterations=90):
        model.inspect()
        if it % 30 == 0:
            print(f"iteration {it}: loss {loss:.5f}", model.panel.children["Object amplitude"])
    print("saved", [tuple(t.shape) for t in model.panel.fire("save")])

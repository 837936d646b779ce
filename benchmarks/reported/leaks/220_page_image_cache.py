# kind: pages of converted documents hold their rendered image in a cached property and the conversion results, wanted for their text, are kept for the report; from document conversion tools that cache page images (docling-like pipelines)
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn as nn


@dataclass
class Page:
    number: int
    seed: int
    regions: list = field(default_factory=list)

    @cached_property  # ALSO
    def image(self):
        g = torch.Generator().manual_seed(self.seed)
        coarse = torch.rand(1, 1, 24, 17, generator=g)
        page = nn.functional.interpolate(coarse.to("cuda"), size=(384, 272), mode="bicubic")
        return page.clamp(0, 1)


@dataclass
class Document:
    name: str
    pages: list[Page]

    @classmethod
    def open(cls, name, n_pages):
        return cls(name, [Page(i, hash((name, i)) % 2**31) for i in range(n_pages)])


@dataclass
class ConversionResult:
    document: Document
    text: str
    status: str = "success"


class LayoutModel(nn.Module):
    def __init__(self, labels):
        super().__init__()
        self.labels = labels
        self.body = nn.Sequential(nn.Conv2d(1, 16, 16, 16), nn.GELU(), nn.Conv2d(16, len(labels), 1))

    @torch.inference_mode()
    def predict(self, image):
        grid = self.body(image).softmax(1)[0]
        conf, label = grid.flatten(1).max(0)
        keep = conf.topk(6).indices.tolist()
        return [(self.labels[label[i].item()], i) for i in keep]


class LayoutStage:
    def __init__(self, device):
        self.model = LayoutModel(["text", "title", "table", "figure"]).to(device).eval()

    def __call__(self, page):
        page.regions = self.model.predict(page.image)  # ALSO
        return page


class ReadingOrderStage:
    def __call__(self, page):
        page.regions.sort(key=lambda r: r[1])
        return page


class DocumentConverter:
    def __init__(self, device="cuda"):
        self.stages = [LayoutStage(device), ReadingOrderStage()]

    def _run(self, page):
        for stage in self.stages:
            page = stage(page)
        return page

    def convert(self, doc):
        for page in doc.pages:
            self._run(page)
        text = "\n".join(f"[{label} {cell}]" for page in doc.pages for label, cell in page.regions)
        return ConversionResult(doc, text)

    def convert_all(self, sources):
        for name, n in sources:
            yield self.convert(Document.open(name, n))


def main():
    torch.manual_seed(0)
    sources = [(f"report_{i:03d}.pdf", 2 + i % 3) for i in range(100)]
    report = []
    for result in DocumentConverter().convert_all(sources):
        report.append(result)  # LEAK
        if len(report) % 25 == 0:
            print(f"{len(report)} documents, last one {result.document.name}: {len(result.text)} characters")
    print("failed:", sum(r.status != "success" for r in report))


if __name__ == "__main__":
    main()

# kind: the pae matrix of each decoded protein stays on the GPU in the ESMProtein that the results list collects; after Biohub/esm PR 295
from dataclasses import dataclass
from typing import List, Optional

import torch
import torch.nn as nn


@dataclass
class ESMProtein:
    sequence: Optional[str] = None
    coordinates: Optional[torch.Tensor] = None
    plddt: Optional[torch.Tensor] = None
    ptm: Optional[torch.Tensor] = None
    pae: Optional[torch.Tensor] = None


class StructureDecoder(nn.Module):
    def __init__(self, d=64, bins=16):
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 128, batch_first=True) for _ in range(2)])
        self.frames = nn.Linear(d, 9)
        self.plddt = nn.Linear(d, 50)
        self.pair_q = nn.Linear(d, 16)
        self.pair_k = nn.Linear(d, 16)
        self.register_buffer("bin_centers", torch.linspace(0, 31, bins))
        self.bin_proj = nn.Linear(1, bins)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        bb = self.frames(x).view(x.shape[0], x.shape[1], 3, 3)
        pair = torch.einsum("bid,bjd->bij", self.pair_q(x), self.pair_k(x))
        pae_logits = self.bin_proj(pair.unsqueeze(-1))
        return {"bb_pred": bb, "plddt": self.plddt(x).softmax(-1).mean(-1), "pae_logits": pae_logits}


class ESM3(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embed = nn.Embedding(33, d)
        self.encoder = nn.TransformerEncoderLayer(d, 4, 128, batch_first=True)
        self.decoder = StructureDecoder(d)

    @property
    def device(self):
        return self.embed.weight.device

    def encode(self, protein):
        ids = [ord(c) % 33 for c in protein.sequence]
        return torch.tensor(ids, device=self.device)[None]

    @torch.no_grad()
    def generate(self, protein):
        tokens = self.encode(protein)
        h = self.encoder(self.embed(tokens))
        return decode_structure(h, self.decoder, protein.sequence)


def compute_predicted_aligned_error(logits, centers):
    return (logits.softmax(-1) * centers).sum(-1)


def compute_tm(pae):
    d0 = 1.24 * (max(pae.shape[-1], 19) - 15) ** (1 / 3) - 1.8
    return (1.0 / (1 + (pae / d0) ** 2)).mean(-1).max(-1).values


def decode_structure(h, decoder, sequence):
    out = decoder(h)
    coords = out["bb_pred"][0].cpu()
    plddt = out["plddt"][0].cpu()
    pae = compute_predicted_aligned_error(out["pae_logits"], decoder.bin_centers)
    ptm = compute_tm(pae)
    return ESMProtein(sequence=sequence, coordinates=coords, plddt=plddt, ptm=ptm, pae=pae)  # LEAK


def batch_generate(model, proteins: List[ESMProtein]):
    results = []
    for p in proteins:
        results.append(model.generate(p))  # ALSO
    return results


if __name__ == "__main__":
    torch.manual_seed(0)
    model = ESM3().cuda().eval()
    alphabet = "ACDEFGHIKLMNPQRSTVWY"
    prompts = []
    for i in range(80):
        idx = torch.randint(0, 20, (320,)).tolist()
        prompts.append(ESMProtein(sequence="".join(alphabet[j] for j in idx)))
    proteins = batch_generate(model, prompts)
    print(len(proteins), proteins[-1].coordinates.shape)

# kind: the pseudo-words of each request are added to the text encoder with resize_token_embeddings() and nothing takes them out, the embedding matrix gets longer and longer; after huggingface/diffusers issues 4063 and 6013
import torch
import torch.nn as nn
from transformers import CLIPTextConfig, CLIPTextModel

DEVICE = "cuda"
VOCAB = 1200
WIDTH = 640
WORDS_PER_SUBJECT = 64


def build_text_encoder():
    config = CLIPTextConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=2 * WIDTH, projection_dim=WIDTH,
        num_hidden_layers=2, num_attention_heads=8, max_position_embeddings=96,
        bos_token_id=0, eos_token_id=1, pad_token_id=1)
    return CLIPTextModel(config).to(DEVICE).eval()


class SubjectEncoder(nn.Module):
    """Turns a reference picture into the vectors of some pseudo-words."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, stride=16)

    def forward(self, picture):
        return self.patches(picture).flatten(2).transpose(1, 2)[0]


class Vocabulary:
    def __init__(self, size):
        self.ids = {f"w{i}": i for i in range(size)}

    def __len__(self):
        return len(self.ids)

    def add(self, words):
        first = len(self.ids)
        for offset, word in enumerate(words):
            self.ids[word] = first + offset
        return list(range(first, first + len(words)))

    def encode(self, words):
        return [0] + [self.ids[w] for w in words] + [1]


class Personaliser:
    def __init__(self):
        self.encoder = build_text_encoder()
        self.subject = SubjectEncoder().to(DEVICE).eval()
        self.vocabulary = Vocabulary(VOCAB)

    @torch.no_grad()
    def load_subject(self, request_id, picture):
        vectors = self.subject(picture.unsqueeze(0))
        words = [f"<{request_id}:{i}>" for i in range(vectors.size(0))]
        ids = self.vocabulary.add(words)
        self.encoder.resize_token_embeddings(len(self.vocabulary), mean_resizing=False)  # LEAK
        table = self.encoder.get_input_embeddings().weight
        table[ids] = vectors.to(table.dtype)
        return words

    @torch.no_grad()
    def __call__(self, request_id, prompt, picture):
        words = self.load_subject(request_id, picture)
        tokens = []
        for word in prompt:
            tokens.extend(words if word == "SUBJECT" else [word])
        ids = torch.tensor([self.vocabulary.encode(tokens)], device=DEVICE)
        return self.encoder(input_ids=ids).last_hidden_state


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    service = Personaliser()
    for n in range(120):
        picture = torch.rand(3, 128, 128, generator=generator).to(DEVICE)
        filler = torch.randint(2, VOCAB, (7,), generator=generator).tolist()
        prompt = [f"w{i}" for i in filler[:4]] + ["SUBJECT"] + [f"w{i}" for i in filler[4:]]
        condition = service(f"req{n}", prompt, picture)
        if n % 20 == 0:
            print(f"request {n:3d}: condition {tuple(condition.shape)}, "
                  f"norm {condition.norm(dim=-1).mean().item():.2f}")


if __name__ == "__main__":
    main()

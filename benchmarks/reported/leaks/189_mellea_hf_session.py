# kind: the session's context keeps every output thunk, whose _meta holds the HF output with the KV cache and scores; after generative-computing/mellea PR 544
import logging

import torch
from transformers import GPT2Config, GPT2LMHeadModel

logging.getLogger("transformers").setLevel(logging.ERROR)


class CharTokenizer:
    def encode(self, text):
        return torch.tensor([[ord(c) % 128 for c in text]])

    def decode(self, ids):
        return "".join(chr(int(i) % 95 + 32) for i in ids)


class ModelOutputThunk:
    """The result of one call of the backend."""

    def __init__(self, value, meta=None):
        self.value = value
        self._meta = {} if meta is None else meta


class LinearContext:
    def __init__(self):
        self._turns = []

    def insert_turn(self, action, output):
        self._turns.append((action, output))  # LEAK

    def last_output(self):
        return self._turns[-1][1] if self._turns else None


class LocalHFBackend:
    def __init__(self, device="cuda"):
        config = GPT2Config(vocab_size=128, n_positions=256, n_embd=128, n_layer=4, n_head=4,
                            bos_token_id=0, eos_token_id=None, pad_token_id=0)
        self._model = GPT2LMHeadModel(config).to(device).eval()
        self._tokenizer = CharTokenizer()
        self._device = device

    @torch.no_grad()
    def _generate(self, input_ids, max_new_tokens):
        sequences, past, scores, step_ids = input_ids, None, [], input_ids
        for _ in range(max_new_tokens):
            out = self._model(input_ids=step_ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            logits = out.logits[:, -1]
            scores.append(logits)
            step_ids = logits.argmax(dim=-1, keepdim=True)
            sequences = torch.cat([sequences, step_ids], dim=1)
        return {"sequences": sequences, "scores": tuple(scores), "past_key_values": past}

    def generate_from_context(self, prompt, max_new_tokens=6):
        input_ids = self._tokenizer.encode(prompt).to(self._device)
        hf_output = self._generate(input_ids, max_new_tokens)
        new_ids = hf_output["sequences"][0, input_ids.shape[1]:]
        result = ModelOutputThunk(value=self._tokenizer.decode(new_ids.tolist()))
        result._meta["hf_output"] = hf_output  # ALSO
        return result


class MelleaSession:
    def __init__(self, backend):
        self.backend = backend
        self.ctx = LinearContext()

    def instruct(self, description, requirements=()):
        out = self.backend.generate_from_context(description)
        self.ctx.insert_turn(description, out)
        for req in requirements:
            judge = "Check the requirement.\nRequirement: %s\nAnswer: %s\nYes or no?" % (req, out.value)
            verdict = self.backend.generate_from_context(judge, max_new_tokens=1)
            self.ctx.insert_turn(judge, verdict)
        return out


def main():
    torch.manual_seed(0)
    m = MelleaSession(LocalHFBackend())
    for i in range(60):
        email = m.instruct(
            "Write an email inviting intern number %d to the office party at 3:30pm." % i,
            requirements=["Use a formal tone."])
    print(email.value)


if __name__ == "__main__":
    main()

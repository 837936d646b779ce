# kind: every generated thunk keeps the whole generate() output (scores and KV cache) in its metadata; from generative-computing/mellea PR 544
import torch
from transformers import LlamaConfig, LlamaForCausalLM


class ModelOutputThunk:
    def __init__(self, value):
        self.value = value
        self._meta = {}


class ChatContext:
    def __init__(self):
        self.turns = []

    def add(self, thunk):
        self.turns.append(thunk)  # ALSO

    def last_tokens(self, n):
        tokens = []
        for thunk in self.turns[-4:]:
            tokens.extend(thunk.value)
        return tokens[-n:]


class LocalHFBackend:
    def __init__(self, model):
        self._model = model

    def generate_from_context(self, prompt_ids, max_new_tokens):
        inputs = torch.tensor([prompt_ids], device="cuda")
        out = self._model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            use_cache=True,
            return_dict_in_generate=True,
            output_scores=True,
        )
        thunk = ModelOutputThunk(out.sequences[0, inputs.shape[1]:].tolist())
        thunk._meta["hf_output"] = out  # LEAK
        return thunk


class Session:
    def __init__(self, backend):
        self.backend = backend
        self.ctx = ContextFactory()

    def instruct(self, description, requirements=()):
        prompt = [ord(c) % 256 for c in description] + self.ctx.last_tokens(16)
        thunk = self.backend.generate_from_context(prompt, 3)
        self.ctx.add(thunk)  # ALSO
        for requirement in requirements:
            judged = self.backend.generate_from_context([ord(c) % 256 for c in requirement] + thunk.value, 1)
            if sum(judged.value) % 2:
                break
        return thunk


ContextFactory = ChatContext


def main():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=12288, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
                         pad_token_id=0, eos_token_id=None, bos_token_id=1)
    model = LlamaForCausalLM(config).cuda().eval()
    session = Session(LocalHFBackend(model))
    for i in range(60):
        session.instruct(f"write an email to customer number {i}", ["be polite"])
    print(len(session.ctx.turns), "turns")


if __name__ == "__main__":
    main()

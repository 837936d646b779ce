# kind: past_key_values of chat sessions, those idle for some turns are dropped and at most ten are held; from transformers server questions
from collections import OrderedDict
import torch
from transformers import LlamaConfig, LlamaForCausalLM


class SessionStore:
    def __init__(self, limit=10, idle=12):
        self.limit, self.idle, self.clock = limit, idle, 0
        self._data = OrderedDict()

    def tick(self):
        self.clock += 1
        for sid in [s for s, (_, used) in self._data.items() if self.clock - used > self.idle]:
            del self._data[sid]

    def get(self, sid):
        return self._data.get(sid, (None, None))[0]

    def put(self, sid, past):
        self._data[sid] = (past, self.clock)
        self._data.move_to_end(sid)
        while len(self._data) > self.limit:
            self._data.popitem(last=False)

    def end(self, sid):
        self._data.pop(sid, None)

    def __len__(self):
        return len(self._data)


torch.manual_seed(0)
config = LlamaConfig(vocab_size=320, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                     num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512)
model = LlamaForCausalLM(config).to("cuda").eval()
store = SessionStore()


@torch.inference_mode()
def reply(sid, ids, n=3):
    past = store.get(sid)
    cur = ids.to("cuda")
    words = []
    for _ in range(n):
        out = model(input_ids=cur, past_key_values=past, use_cache=True)
        past = out.past_key_values
        cur = out.logits[:, -1:].argmax(-1) % 320
        words.append(cur)
    store.put(sid, past)
    return torch.cat(words, 1).cpu()


# three users talk at a time, four turns each; every third of them says goodbye, the others just leave
for turn in range(150):
    store.tick()
    group, member = divmod(turn, 12)
    sid = f"u{group * 3 + member % 3}"
    reply(sid, torch.randint(0, 320, (1, 40)))
    if member >= 9 and member % 3 == 0:
        store.end(sid)
    if turn % 30 == 0:
        print("turn", turn, "session", sid, "held", len(store))

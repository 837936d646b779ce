# kind: the transfer table is filled under the remote request id and cleaned up under the local one, pop with a default finds nothing and each request's blocks remain; after vllm-project/vllm-ascend PR 10554
import queue
import threading
import uuid

import torch
from torch import nn

torch.manual_seed(20)


class PrefillWorker:
    def __init__(self, layers=4, dim=64):
        self.embed = nn.Embedding(1000, dim).cuda()
        self.layers = nn.ModuleList(nn.Linear(dim, 2 * dim) for _ in range(layers)).cuda()

    @torch.inference_mode()
    def prefill(self, tokens):
        x = self.embed(torch.tensor(tokens, device="cuda"))
        blocks = []
        for layer in self.layers:
            kv = layer(x)
            blocks.append(kv)
            x = torch.tanh(kv[:, : x.shape[1]]) + x
        return torch.stack(blocks)


class KVReceiver(threading.Thread):
    """Takes prefilled blocks over and keeps them until the decoder has read them."""

    def __init__(self):
        super().__init__(daemon=True)
        self.inbox = queue.Queue(maxsize=4)
        self.transfers = {}
        self.done = 0

    def submit(self, meta, blocks):
        self.inbox.put((meta, blocks))

    def run(self):
        while True:
            item = self.inbox.get()
            if item is None:
                return
            self._handle(*item)

    def _receive(self, request_id, blocks):
        self.transfers[request_id] = blocks.contiguous()  # LEAK
        return self.transfers[request_id]

    def _handle(self, meta, blocks):
        request_id = meta["request_id"]
        remote_request_id = meta["remote_request_id"]
        try:
            kv = self._receive(remote_request_id, blocks)  # ALSO
            meta["reply"].put(self._decode(kv, meta["max_tokens"]))
            self.done += 1
        finally:
            self.transfers.pop(request_id, None)

    @staticmethod
    def _decode(kv, max_tokens):
        query = kv[-1, -1:, : kv.shape[-1] // 2]
        out = []
        for _ in range(max_tokens):
            keys, values = kv[-1].chunk(2, -1)
            attn = (query @ keys.T / keys.shape[-1] ** 0.5).softmax(-1)
            query = torch.tanh(attn @ values + query)
            out.append(query.argmax().item())
        return out


def main():
    prefill = PrefillWorker()
    receiver = KVReceiver()
    receiver.start()
    gen = torch.Generator().manual_seed(6)
    ids = uuid.UUID(int=0)
    for n in range(300):
        length = int(torch.randint(400, 900, (1,), generator=gen))
        tokens = torch.randint(0, 1000, (length,), generator=gen).tolist()
        reply = queue.Queue()
        ids = uuid.UUID(int=ids.int + 7919)
        meta = {"request_id": f"cmpl-{n}", "remote_request_id": f"cmpl-{n}-{ids.hex[-6:]}",
                "max_tokens": 40, "reply": reply}
        receiver.submit(meta, prefill.prefill(tokens))
        text = reply.get()
        if n % 50 == 49:
            print(f"request {n + 1}: {length} tokens in, {text}")
    receiver.inbox.put(None)
    receiver.join()
    print("done", receiver.done)


if __name__ == "__main__":
    main()

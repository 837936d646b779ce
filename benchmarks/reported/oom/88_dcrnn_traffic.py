# CARD: 3584MiB
# KNOBS: BATCH=64 RNN_UNITS=64 AUTOCAST CHECKPOINT=DCGRUCell OPT FUSED
# EXPERT: 12 + 12 time steps of a two-layer diffusion-convolution GRU on 207 sensors, each gate keeps its five stacked diffusion terms; smaller batch_size, fewer diffusion steps or units, checkpoint the cell
# after chnsh/DCRNN_PyTorch issue 6 (METR-LA, dcrnn_la.yaml; dies with 4.4 GiB in use on a shared 5.8 GiB card; rebuilt with dense supports)
import os

import numpy as np
import torch
import torch.nn as nn

import knobs

device = torch.device("cuda")

config = {
    "data": {"batch_size": int(os.environ.get("BATCH", 64))},
    "model": {"cl_decay_steps": 2000, "filter_type": "dual_random_walk", "horizon": 12, "input_dim": 2,
              "max_diffusion_step": 2, "num_nodes": 207, "num_rnn_layers": 2, "output_dim": 1,
              "rnn_units": int(os.environ.get("RNN_UNITS", 64)), "seq_len": 12, "use_curriculum_learning": True},
    "train": {"base_lr": 0.01, "epsilon": 1e-3, "max_grad_norm": 5, "steps": 3},
}


def random_walk_matrix(adj):
    d = adj.sum(1)
    return adj / np.where(d > 0, d, 1)[:, None]


class LayerParams:
    def __init__(self, rnn_network, layer_type):
        self._rnn_network, self._type = rnn_network, layer_type
        self._params_dict, self._biases_dict = {}, {}

    def get_weights(self, shape):
        if shape not in self._params_dict:
            p = nn.Parameter(torch.empty(*shape, device=device))
            nn.init.xavier_normal_(p)
            self._params_dict[shape] = p
            self._rnn_network.register_parameter(f"{self._type}_weight_{shape[0]}x{shape[1]}", p)
        return self._params_dict[shape]

    def get_biases(self, length, start=0.0):
        if length not in self._biases_dict:
            p = nn.Parameter(torch.full((length,), start, device=device))
            self._biases_dict[length] = p
            self._rnn_network.register_parameter(f"{self._type}_biases_{length}", p)
        return self._biases_dict[length]


class DCGRUCell(nn.Module):
    def __init__(self, num_units, adj_mx, max_diffusion_step, num_nodes):
        super().__init__()
        self._num_nodes, self._num_units, self._max_diffusion_step = num_nodes, num_units, max_diffusion_step
        supports = [random_walk_matrix(adj_mx).T, random_walk_matrix(adj_mx.T).T]
        self._supports = [torch.tensor(s, dtype=torch.float32, device=device) for s in supports]
        self._gconv_params = LayerParams(self, "gconv")

    def forward(self, inputs, hx):
        value = torch.sigmoid(self._gconv(inputs, hx, 2 * self._num_units, bias_start=1.0))
        value = torch.reshape(value, (-1, self._num_nodes, 2 * self._num_units))
        r, u = torch.split(value, self._num_units, dim=-1)
        r = torch.reshape(r, (-1, self._num_nodes * self._num_units))
        u = torch.reshape(u, (-1, self._num_nodes * self._num_units))
        c = torch.tanh(self._gconv(inputs, r * hx, self._num_units))
        return u * hx + (1.0 - u) * c

    @staticmethod
    def _concat(x, x_):
        return torch.cat([x, x_.unsqueeze(0)], dim=0)

    def _gconv(self, inputs, state, output_size, bias_start=0.0):
        batch_size = inputs.shape[0]
        inputs = torch.reshape(inputs, (batch_size, self._num_nodes, -1))
        state = torch.reshape(state, (batch_size, self._num_nodes, -1))
        x = torch.cat([inputs, state], dim=2)
        input_size = x.size(2)
        x0 = torch.reshape(x.permute(1, 2, 0), [self._num_nodes, input_size * batch_size])
        x = torch.unsqueeze(x0, 0)
        for support in self._supports:
            x1 = torch.mm(support, x0)
            x = self._concat(x, x1)
            for _ in range(2, self._max_diffusion_step + 1):
                x2 = 2 * torch.mm(support, x1) - x0
                x = self._concat(x, x2)
                x1, x0 = x2, x1
        n = len(self._supports) * self._max_diffusion_step + 1
        x = torch.reshape(x, [n, self._num_nodes, input_size, batch_size]).permute(3, 1, 2, 0)
        x = torch.reshape(x, [batch_size * self._num_nodes, input_size * n])
        x = torch.matmul(x, self._gconv_params.get_weights((input_size * n, output_size)))
        x = x + self._gconv_params.get_biases(output_size, bias_start)
        return torch.reshape(x, [batch_size, self._num_nodes * output_size])


class DCRNNModel(nn.Module):
    def __init__(self, adj_mx, cfg):
        super().__init__()
        self.cfg = cfg

        def cells():
            return nn.ModuleList([DCGRUCell(cfg["rnn_units"], adj_mx, cfg["max_diffusion_step"], cfg["num_nodes"])
                                  for _ in range(cfg["num_rnn_layers"])])

        self.encoder_cells, self.decoder_cells = cells(), cells()
        self.projection_layer = nn.Linear(cfg["rnn_units"], cfg["output_dim"])

    def _step(self, cells, output, hidden):
        states = []
        for cell, h in zip(cells, hidden):
            output = cell(output, h)
            states.append(output)
        return output, torch.stack(states)

    def forward(self, inputs, labels=None, batches_seen=0):
        cfg = self.cfg
        b = inputs.size(1)
        hidden = torch.zeros(cfg["num_rnn_layers"], b, cfg["num_nodes"] * cfg["rnn_units"], device=device)
        for t in range(cfg["seq_len"]):
            _, hidden = self._step(self.encoder_cells, inputs[t], hidden)
        decoder_input = torch.zeros(b, cfg["num_nodes"] * cfg["output_dim"], device=device)
        outputs = []
        threshold = cfg["cl_decay_steps"] / (cfg["cl_decay_steps"] + np.exp(batches_seen / cfg["cl_decay_steps"]))
        for t in range(cfg["horizon"]):
            out, hidden = self._step(self.decoder_cells, decoder_input, hidden)
            decoder_input = self.projection_layer(out.view(-1, cfg["rnn_units"])).view(b, -1)
            outputs.append(decoder_input)
            if self.training and cfg["use_curriculum_learning"] and np.random.uniform() < threshold:
                decoder_input = labels[t]
        return torch.stack(outputs)


def masked_mae_loss(y_pred, y_true):
    mask = (y_true != 0).float()
    mask = mask / mask.mean()
    return (torch.abs(y_pred - y_true) * mask).mean()


class DCRNNSupervisor:
    def __init__(self, adj_mx, config):
        self.config = config
        self.model = DCRNNModel(adj_mx, config["model"]).cuda()
        knobs.apply(self.model)

    def batch(self):
        m, b = self.config["model"], self.config["data"]["batch_size"]
        x = torch.randn(m["seq_len"], b, m["num_nodes"] * m["input_dim"])
        y = 40 + torch.rand(m["horizon"], b, m["num_nodes"] * m["output_dim"])
        return x.to(device), y.to(device)

    def train(self):
        t = self.config["train"]
        optimizer = None
        for step in range(t["steps"]):
            x, y = self.batch()
            with knobs.autocast():
                output = self.model(x, y, step)
            if optimizer is None:  # the cells register their parameters in the first forward
                optimizer = torch.optim.Adam(self.model.parameters(), lr=t["base_lr"], eps=t["epsilon"])
            optimizer.zero_grad()
            loss = masked_mae_loss(output.float(), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), t["max_grad_norm"])
            optimizer.step()
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    np.random.seed(0)
    adj = np.random.rand(207, 207) * (np.random.rand(207, 207) < 0.04) + np.eye(207)
    DCRNNSupervisor(adj, config).train()
    print("PEAK", torch.cuda.max_memory_allocated())

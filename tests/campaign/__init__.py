"""Random programs that are right natively, and are to be right under oomph.

``python tests/campaign --programs 500`` hunts; ``--seed N`` repeats one program.

* ``program``: what a program is: a list of operations, drawn from a seed.
* ``machine``: carries one out, and orders streams as PyTorch's allocator wants it.
* ``memory``, ``training``, ``graphs``: the operations.
* ``child``: runs a program in a process on a simulated card.
* ``hunt``: compares processes, and makes a program that fails short.
"""

"""Where a program was, and what it had set: read from the lines around an error."""

from test_doctor import SEED_B, found_in, only

NOTEBOOK = f"""\
OutOfMemoryError                          Traceback (most recent call last)
{{cell}}
     13 for x in loader:
---> 15     loss.backward()

/usr/lib/python3.11/site-packages/torch/_tensor.py in backward(self)
--> 523             self, gradient, retain_graph, create_graph, inputs=inputs

OutOfMemoryError: {SEED_B}"""


def test_a_notebooks_cell_is_a_traceback():
    for cell, where in (
        ("/tmp/ipykernel_5/23.py in <cell line: 0>()", "/tmp/ipykernel_5/23.py:15"),
        ("<ipython-input-4-835> in <module>()", "<ipython-input-4-835>:15"),
        ("<ipython-input-4-835> in <module>", "<ipython-input-4-835>:15"),
        ("Cell In[7], line 15", "Cell In[7]:15"),
        ("Input In [7], in <cell line: 13>()", "Input In [7]:15"),
    ):
        error = only(NOTEBOOK.format(cell=cell))
        assert error["where"].split(" (")[0] == where
        assert (error["phase"], error["not_known"][-1][:5]) == ("backward", "who h")


def test_what_the_log_sets_after_an_error_was_not_on_before():
    text = SEED_B.replace("18.21", "12.21")
    log = (
        f"{text}\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
    )
    assert "expandable_segments:True" in only(log)["helps"][0]["action"]


def test_of_a_traceback_with_the_innermost_first_the_first_line_is_reported():
    log = f"""\
Exception has occurred: RuntimeError
{SEED_B.removeprefix("RuntimeError: ")}
  File "/home/u/layers.py", line 248, in forward
    x = a * b
  File "/home/u/train.py", line 18, in <module>
    trainer.train()
"""
    assert only(log)["where"] == "/home/u/layers.py:248 (forward)"


def test_the_traceback_that_another_rank_writes_next_is_not_this_ones():
    trace = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/home/u/train.py", line 1{0}, in main
[rank{0}]:     f(x)
[rank{0}]: {1}
"""
    log = trace.format(0, SEED_B) + trace.format(1, SEED_B.replace("2.34", "2.50"))
    assert [error["where"] for error in found_in(log)] == [
        "/home/u/train.py:10 (main)",
        "/home/u/train.py:11 (main)",
    ]

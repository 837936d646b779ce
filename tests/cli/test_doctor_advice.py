"""What ``oomph doctor`` says agrees with the text, and comes in a wise order."""

import pytest
from test_doctor import FORMS, HINT, SEED_B, SEED_C, only, said_of


def error_of(
    asked: str, total: str, free: str, process: str, tensors: str, cached: str
) -> str:
    """An error of PyTorch 2.6, in a container."""
    return (
        f"OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a "
        f"total capacity of {total} of which {free} is free. {process}Of the allocated "
        f"memory {tensors} is allocated by PyTorch, and {cached} is reserved by "
        f"PyTorch but unallocated.{HINT}"
    )


def first(log: str) -> str:
    return only(log)["helps"][0]["action"]


def actions(log: str) -> str:
    return "; ".join(advice["action"] for advice in only(log)["helps"])


# ---- No contradiction


@pytest.mark.parametrize(
    "short",
    [
        "It failed at common.py:11 (Net.forward), 6.00 MiB short: h = torch.relu(b(h))",
        "It failed at common.py:11 (Net.forward), 6.00 MiB short\nA whole step needs",
        "6.00 MiB are missing at common.py:11 (Net.forward): h = torch.relu(b(h))",
    ],
    ids=["with its source", "without", "as it once was"],
)
def test_of_oomphs_own_error_what_is_missing_is_read(short):
    log = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has "
        "a total capacity of 2.00 GiB of which 232.00 MiB is free. Of the allocated "
        "memory 1.24 GiB is allocated by PyTorch, and 14.59 MiB is reserved by PyTorch "
        "but unallocated. oomph: no room for 256.00 MiB: 1.25 GiB of 2.00 GiB in use, "
        f"232.00 MiB free; offload is off.\n{short}\n"
    )
    error = only(log)
    assert error["account"]["missing"]["text"] == "6.00 MiB"
    assert "232.00 MiB of 2.00 GiB are free: 6.00 MiB missing" in said_of(log)
    assert not any("why the driver refused" in said for said in error["not_known"])


def test_rounding_gives_no_negative_figure():
    log = (
        FORMS["2.10"][0].replace("61.40", "60.51").replace("70.00 GiB a", "60.51 GiB a")
    )
    log = log.replace("1.50 GiB.", "2.00 MiB.")
    error = only(log)
    assert error["account"]["limit_decides"] is True
    assert error["account"]["missing"]["at_least_bytes"] == 0
    assert "2.00 MiB" in said_of(log) and "-" not in said_of(log).split("\n")[1]


# ---- Words and numbers


def test_a_sum_has_one_unit():
    log = SEED_B.replace("18.21 GiB", "781.59 MiB").replace("20.12", "1.24")
    assert "1.24 GiB reserved = 0.76 GiB in tensors + 0.48 GiB cached" in said_of(log)


def test_a_little_is_not_advised_to_be_less_where_much_is_free():
    log = error_of("12.00 MiB", "10.92 GiB", "9.28 GiB", "", "8.57 MiB", "4.68 MiB")
    assert "batch" not in actions(log)


def test_a_surplus_is_reported_as_large_as_it_is():
    log = error_of("246.00 MiB", "31.75 GiB", "460.38 MiB", "", "30.00 GiB", "1.00 GiB")
    assert "214.38 MiB more than was asked for" in said_of(log)


def test_much_outside_is_looked_for_also_where_enough_seems_free():
    log = error_of("20.00 MiB", "7.93 GiB", "25.38 MiB", "", "2.81 GiB", "256.00 MiB")
    assert "nvidia-smi" in first(log)


def test_bare_contexts_of_one_size_are_the_jobs_own_ranks():
    others = "".join(f"Process {n} has 414.00 MiB memory in use. " for n in range(4))
    text = "Including non-PyTorch memory, this process has 37.46 GiB memory in use. "
    log = error_of(
        "572.00 MiB", "39.49 GiB", "321.31 MiB", others + text, "36.04 GiB", "321 MiB"
    )
    assert "torch.cuda.set_device" in first(log)
    assert "end or move" in only(log)["helps"][1]["action"]
    mixed = log.replace("Process 1 has 414.00 MiB", "Process 1 has 5.00 GiB")
    assert "set_device" not in actions(mixed)


def test_where_host_memory_is_lent_or_the_driver_is_silent_oomph_run_is_not_advised():
    lent = error_of("1002.00 MiB", "8.00 GiB", "0 bytes", "", "13.98 GiB", "129.48 MiB")
    silent = error_of(
        "64.00 MiB", "15.99 GiB", "17179869184.00 GiB", "", "14.96 GiB", "410.41 MiB"
    )
    assert "oomph run" not in actions(lent) + actions(silent)
    assert "WSL" in only(silent)["not_known"][0]


def test_private_pools_that_have_nearly_all_come_first():
    log = error_of(
        *("2.00 MiB", "47.53 GiB", "896.00 KiB", "", "47.00 GiB"),
        "149.10 MiB",
    ).replace(
        "PyTorch, and",
        "PyTorch, with 46.22 GiB allocated in private pools (e.g., CUDA Graphs), and",
        1,
    )
    assert "CUDA graphs" in first(log)
    assert "find what holds" not in actions(log)


def test_a_wrong_size_is_not_advised_to_be_a_little_smaller():
    log = error_of("5534.17 GiB", "47.53 GiB", "39.46 GiB", "", "7.74 GiB", "6.64 MiB")
    assert [a["action"] for a in only(log)["helps"]] == ["check the shape or the input"]


def test_a_loss_over_a_known_vocabulary_is_computed_in_chunks():
    log = f"""\
{{'per_device_train_batch_size': 8, 'max_seq_len': 4160}}
Traceback (most recent call last):
  File "/home/u/train.py", line 329, in main
    trainer.train()
  File "/x/site-packages/torch/nn/functional.py", line 3504, in cross_entropy
    return torch._C._nn.cross_entropy_loss(
{error_of("18.84 GiB", "39.38 GiB", "448.56 MiB", "", "35.59 GiB", "2.14 GiB")}"""
    error = only(log)
    assert error["shapes"][0].startswith("32-bit 8 x 4160 x 151936")
    assert "chunks" in error["helps"][0]["action"]
    assert "smaller batch" in error["helps"][1]["action"]


def test_as_much_as_is_held_is_a_second_copy():
    log = error_of("75.13 GiB", "139.81 GiB", "63.24 GiB", "", "75.13 GiB", "18.76 MiB")
    assert "second copy" in first(log)


def test_what_cudamallocasync_does_not_report_is_outside_and_looked_for():
    log = FORMS["cudaMallocAsync"][0].replace("14.93", "6.89")
    error = only(log)
    assert error["account"]["outside"]["text"] == "9.09 GiB"
    assert "nvidia-smi" in error["helps"][0]["action"]


def test_the_table_of_nvidia_smi_says_which_gpu_is_empty():
    log = """\
|   0  Tesla V100-SXM2...  On   | 00000000:00:08.0 Off |                    0 |
| N/A   54C    P0   246W / 300W |  15514MiB / 16130MiB |    100%      Default |
+-------------------------------+----------------------+----------------------+
|   1  Tesla V100-SXM2...  On   | 00000000:00:09.0 Off |                    0 |
| N/A   38C    P0    39W / 300W |      0MiB / 16130MiB |      0%      Default |
RuntimeError: CUDA error: out of memory
"""
    assert "CUDA_VISIBLE_DEVICES=1" in first(log)


def test_what_helps_is_said_in_plain_words():
    said = said_of(SEED_C)
    assert "at least 3.46 GiB goes over PCIe in every step" in said
    assert "smaller; more in practice, since parameters do not shrink" in said
    assert "= process 4711 (its id outside the container)" in said_of(FORMS["2.1"][0])

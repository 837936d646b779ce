"""How much host memory a process may take by itself: half of what there is, shared."""

import os

import pytest
from oomph.memory import host
from support import GIB, MIB, run


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine of files, with 64 GiB available; gives a function that writes more."""
    for variable in (*host._LOCAL_SIZES, host.BASE):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)

    def write(**files: str | int) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "cgroups")
    monkeypatch.setattr(host, "_OWN_CGROUP", tmp_path / "own_cgroup")
    write(meminfo=available(64 * GIB))
    return write


def available(size_bytes: int) -> str:
    """What /proc/meminfo says."""
    return f"MemTotal: 99999999999 kB\nMemAvailable: {size_bytes >> 10} kB"


# ---- What there is


def test_without_control_groups_the_limit_is_half_of_what_is_available():
    assert host.default_limit_bytes() == 32 * GIB


def test_a_group_of_version_2_limits_what_there_is(machine):
    machine(
        **{
            "own_cgroup": "0::/job",
            "cgroups/job/memory.max": 10 * GIB,
            "cgroups/job/memory.current": 4 * GIB,
        }
    )
    assert host.available_bytes() == 6 * GIB


def test_a_group_of_version_1_limits_what_there_is(machine):
    machine(
        **{
            "own_cgroup": "5:cpu:/job\n4:hugetlb,memory:/job\n0::/",
            "cgroups/memory/job/memory.limit_in_bytes": 10 * GIB,
            "cgroups/memory/job/memory.usage_in_bytes": 4 * GIB,
        }
    )
    assert host.available_bytes() == 6 * GIB


def test_the_tightest_group_above_counts(machine):
    machine(
        **{
            "own_cgroup": "0::/pod/container",
            "cgroups/pod/container/memory.max": 40 * GIB,
            "cgroups/pod/container/memory.current": 1 * GIB,
            "cgroups/pod/memory.max": 20 * GIB,
            "cgroups/pod/memory.current": 5 * GIB,
        }
    )
    assert host.available_bytes() == 15 * GIB


def test_a_container_that_sees_its_own_group_as_the_root_is_limited(machine):
    machine(
        **{
            "own_cgroup": "4:memory:/docker/4f2a",  # a path of the host
            "cgroups/memory/memory.limit_in_bytes": 8 * GIB,
            "cgroups/memory/memory.usage_in_bytes": 2 * GIB,
        }
    )
    assert host.available_bytes() == 6 * GIB


@pytest.mark.parametrize("limit", ["max", 20 * GIB])
def test_the_mark_above_which_a_group_is_slowed_down_counts(machine, limit):
    machine(
        **{
            "own_cgroup": "0::/job",
            "cgroups/job/memory.max": limit,
            "cgroups/job/memory.high": 9 * GIB,
            "cgroups/job/memory.current": 1 * GIB,
        }
    )
    assert host.available_bytes() == 8 * GIB


@pytest.mark.parametrize(
    ("own", "folder", "limit", "used", "cache"),
    [
        ("0::/job", "job", "memory.max", "memory.current", "inactive_file"),
        (
            *("3:memory:/job", "memory/job", "memory.limit_in_bytes"),
            *("memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_cached_files_of_a_group_are_no_use_of_memory(
    machine, own, folder, limit, used, cache
):
    machine(
        **{
            "own_cgroup": own,
            f"cgroups/{folder}/{limit}": 10 * GIB,
            f"cgroups/{folder}/{used}": 9 * GIB,
            f"cgroups/{folder}/memory.stat": f"anon 5\n{cache} {7 * GIB}\nslab 3",
        }
    )
    assert host.available_bytes() == 8 * GIB


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_a_group_without_a_limit_limits_nothing(machine, limit):
    machine(
        **{
            "own_cgroup": "0::/job",
            "cgroups/job/memory.max": limit,
            "cgroups/job/memory.current": 4 * GIB,
        }
    )
    assert host.available_bytes() == 64 * GIB


def test_a_group_that_is_full_leaves_nothing(machine):
    machine(
        **{
            "own_cgroup": "0::/job",
            "cgroups/job/memory.max": GIB,
            "cgroups/job/memory.current": GIB + MIB,
        }
    )
    assert host.default_limit_bytes() == 0


# ---- Sharing it


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOCAL_WORLD_SIZE", "4"),
        ("LOCAL_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("MPI_LOCALNRANKS", "4"),
        ("SLURM_STEP_TASKS_PER_NODE", "4"),
        ("SLURM_STEP_TASKS_PER_NODE", "2,4(x16)"),
    ],
)
def test_processes_of_a_node_share_whoever_started_them(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert host.default_limit_bytes() == 8 * GIB


def test_the_nearest_launcher_knows_how_many_there_are(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2)")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert host.default_limit_bytes() == 4 * GIB


def start_ranks(machine, monkeypatch, count: int) -> list[int]:
    """The limits of ranks, each started when those before it have taken all theirs."""
    taken = []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(count))
    for _ in range(count):
        machine(meminfo=available(64 * GIB - sum(taken)))
        taken.append(host.default_limit_bytes())
    return taken


@pytest.mark.parametrize("count", [2, 8])
def test_a_rank_that_starts_late_gets_the_share_of_the_first(
    machine, monkeypatch, count
):
    host.default_limit_bytes()  # of the launcher
    limits = start_ranks(machine, monkeypatch, count)
    assert limits == [32 * GIB // count] * count


def test_ranks_of_a_launcher_without_oomph_never_take_more_than_half(
    machine, monkeypatch
):
    limits = start_ranks(machine, monkeypatch, 4)
    assert limits[0] == 8 * GIB
    assert sum(limits) <= 32 * GIB


def test_a_rank_takes_no_more_than_half_of_what_others_have_left(machine, monkeypatch):
    host.default_limit_bytes()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    machine(meminfo=available(10 * GIB))  # another job has come
    assert host.default_limit_bytes() == 5 * GIB


def test_a_process_that_is_alone_measures_anew(machine):
    host.default_limit_bytes()
    machine(meminfo=available(16 * GIB))
    assert host.default_limit_bytes() == 8 * GIB
    assert os.environ[host.BASE] == str(16 * GIB)


# ---- How many pages it may map


def test_host_pages_leave_the_program_an_eighth_of_its_mappings(machine, monkeypatch):
    machine(max_map_count=65530, maps="\n".join(["7f00-7f01 r-xp"] * 2530))
    monkeypatch.setattr(host, "_MAX_MAP_COUNT", host._MEMINFO.parent / "max_map_count")
    monkeypatch.setattr(host, "_MAPS", host._MEMINFO.parent / "maps")
    assert host.page_max() == 63000 * 7 // 8


def test_nothing_limits_host_pages_where_the_system_names_no_number(monkeypatch):
    monkeypatch.setattr(host, "_MAX_MAP_COUNT", host._MEMINFO.parent / "none")
    assert host.page_max() == 0


def test_a_launcher_may_say_after_the_import_how_many_ranks_there_are():
    found = run(
        """
        import os
        import torch
        import oomph
        os.environ["LOCAL_WORLD_SIZE"] = "4"  # as workers of Ray are told
        torch.zeros(1, device="cuda")
        print(oomph.stats()["host_limit_bytes"] >> 20)
        """,
        card="1GiB,context=0,host=8GiB",
        conf="offload:auto",
    )
    assert found.out == "1024\n", found.said

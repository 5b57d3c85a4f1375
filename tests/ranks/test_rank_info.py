"""Which rank a process is, from the variables that torchrun and Slurm are known to set."""

import pytest

from onsight.ranks.meeting import RankInfo, rank_from_env, slurm_address

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
}


def test_torchruns_variables_are_read():
    assert rank_from_env(TORCHRUN) == RankInfo(5, 8, 1, 4, 1, "torchrun")


def test_rank_and_size_alone_mean_one_machine():
    assert rank_from_env({"RANK": "1", "WORLD_SIZE": "2"}) == RankInfo(1, 2, 1, 2, 0, "torchrun")


def test_sruns_variables_are_read():
    assert rank_from_env(SLURM) == RankInfo(9, 11, 1, 3, 2, "Slurm")


@pytest.mark.parametrize(
    ("tasks", "node", "expected"),
    [("2", 0, 2), ("4(x2),3", 0, 4), ("4(x2),3", 1, 4), ("4(x2),3", 2, 3), ("1,2(x3),8", 4, 8)],
)
def test_slurms_run_length_notation_is_read(tasks, node, expected):
    variables = SLURM | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)}
    assert rank_from_env(variables).local_size == expected


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # batch script or salloc
    ],
)
def test_a_process_without_a_launcher_has_no_rank(variables):
    assert rank_from_env(variables) is None


def test_torchrun_inside_a_slurm_step_takes_precedence():
    assert rank_from_env(SLURM | TORCHRUN).launcher == "torchrun"


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu[03-07,12],cpu1", "gpu03"),
        ("gpu[9,11-12]", "gpu9"),
        ("login1", "login1"),
        ("cpu1,gpu[03-07]", "cpu1"),
        ("rack2-node[001-100]-ib", "rack2-node001-ib"),
    ],
)
def test_slurm_ranks_meet_at_the_first_node(nodes, host):
    assert slurm_address(SLURM | {"SLURM_STEP_NODELIST": nodes})[0] == host


def test_slurm_jobs_and_steps_have_their_own_ports():
    ports = {
        slurm_address(SLURM | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})[1]
        for job, step in [(100, 0), (100, 1), (5000, 0)]
    }
    assert len(ports) == 3
    assert all(1024 < port < 65536 for port in ports)


def test_a_given_address_is_used():
    given = SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
    assert slurm_address(given) == ("10.0.0.1", 1234)

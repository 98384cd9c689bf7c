"""Plain tests that take more than three processor seconds, with the reasons. All others of that cost are long."""

_SHOWS = "no quicker test shows "
SLOW = {
    "tests/conformance/test_extremes.py::test_outputs_and_gradients_are_those_of_float64": (
        "its first case compiles the rows of all"
    ),
    "tests/core/engine/test_rounds.py::test_a_round_ends_in_the_mean_of_trainings_of_the_replicas_own": (
        f"{_SHOWS}what local steps compute"
    ),
    "tests/core/engine/test_specification.py::test_the_engine_does_what_the_specification_says": (
        f"{_SHOWS}the numbers of the whole engine"
    ),
    "tests/core/parallel/test_mesh_operations.py::test_operations_that_pass_are_right": (
        f"{_SHOWS}the operations of a mesh"
    ),
    "tests/core/parallel/test_mesh_steps.py::test_twenty_steps_are_those_of_one_device": (
        f"{_SHOWS}the numbers of a mesh"
    ),
    "tests/core/test_checkpoint.py::test_a_kill_at_any_moment_leaves_a_whole_checkpoint": (
        f"{_SHOWS}a process that is killed amid a save"
    ),
    "tests/test_commands.py::test_fork_ends_as_a_process_does": f"{_SHOWS}that the tests' forks are true",
    "tests/test_essence.py::test_essence_has_the_engine_s_numbers_on_two_replicas": (
        f"{_SHOWS}that the essence is the engine"
    ),
    "tests/test_site.py::test_each_error_that_the_code_makes_is_in_the_list_of_messages": (
        "a changed message fails at once"
    ),
    "tests/trainers/dry_run/test_least_time.py::test_step_without_products_takes_time_too": (
        f"{_SHOWS}the speed of small operations"
    ),
    "tests/trainers/hooks/test_norms.py::test_norms_are_those_of_the_next_update": f"{_SHOWS}these figures",
    "tests/trainers/launch/test_many_workers.py::test_a_lost_worker_ends_the_run_and_is_named": (
        f"{_SHOWS}several workers"
    ),
    "tests/trainers/test_deterministic.py::test_two_runs_end_in_the_same_bits": f"{_SHOWS}determinism on replicas",
    "tests/trainers/test_observing.py::test_observers_change_no_bit_of_a_run": f"{_SHOWS}all observers at once",
    "tests/trainers/test_resume.py::test_killed_twice_and_started_again": f"{_SHOWS}the command, killed and resumed",
    "tests/trainers/test_runs_in_bfloat16.py::test_run_resumes_to_the_bit": f"{_SHOWS}a run in bfloat16",
    "tests/trainers/test_same_numbers.py::test_xla_changes_rounding_alone": f"{_SHOWS}a compiled training",
}

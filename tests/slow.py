"""Plain tests that take more than three processor seconds, with the reasons."""

PROCESS = "it starts a process that imports TensorFlow, or several"
TRACES = "it traces several steps, each of other phases or settings"
MESH = "DTensor compiles each of its operations"
COMPILED = "XLA compiles several programs"
COMMANDS = "it runs the command several times, each of which traces a step"
WHOLE = "it goes through a whole model, or all parts, of those that ship"

_BY_FILE = {
    "tests/benchmarks/test_peers.py": (
        COMPILED,
        "test_by_hand_and_jax_train_as_tapeloop_does",
    ),
    "tests/core/parallel/test_mesh_operations.py": (
        MESH,
        "test_operations_that_pass_are_right",
    ),
    "tests/core/parallel/test_read_order.py": (
        MESH,
        "test_a_generator_learns_from_the_discriminator_as_its_update_left_it",
        "test_values_derived_after_an_update_are_of_what_it_wrote",
    ),
    "tests/core/parallel/test_mesh_steps.py": (
        MESH,
        "test_twenty_steps_are_those_of_one_device",
    ),
    "tests/core/engine/test_precision.py": (
        TRACES,
        "test_replicas_and_microbatches_give_the_same_numbers_to_rounding",
        "test_weights_are_cast_once_and_have_the_gradients_of_a_cast",
    ),
    "tests/core/engine/test_rounds.py": (
        TRACES,
        "test_a_round_ends_in_the_mean_of_trainings_of_the_replicas_own",
    ),
    "tests/core/engine/test_skipping.py": (
        TRACES,
        "test_all_phases_of_a_step_are_left_out_whichever_is_bad",
    ),
    "tests/core/engine/test_specification.py": (
        TRACES,
        "test_the_engine_does_what_the_specification_says",
    ),
    "tests/core/estimate/test_beside_the_ledger.py": (
        MESH,
        "test_rows_of_images_sum_their_gradients",
    ),
    "tests/core/layers/test_layers_under_xla.py": (
        COMPILED,
        "test_gradient_of_equal_values_in_a_pool_is_the_same_compiled_or_not",
        "test_layer_has_the_same_two_derivatives_compiled_or_not",
    ),
    "tests/core/testing/test_testing_replicas.py": (
        TRACES,
        "test_right_tasks_pass_for_any_number",
    ),
    "tests/core/cluster/test_other_users.py": (
        PROCESS,
        "test_command_by_hand_ends_with_2_where_people_are_at_work",
    ),
    "tests/models/language/test_language_model.py": (
        WHOLE,
        "test_tiles_train_the_same_on_replicas_and_in_microbatches",
        "test_language_model_passes_all_checks_of_a_task",
    ),
    "tests/models/test_vae.py": (
        WHOLE,
        "test_vae_passes_all_checks_of_a_task_and_overfits",
    ),
    "tests/test_commands.py": (
        PROCESS,
        "test_fork_ends_as_a_process_does",
        "test_fork_server_ends_with_its_client",
    ),
    "tests/test_configs.py": (
        WHOLE,
        "test_generative_configuration_sends_what_its_page_says",
    ),
    "tests/tools/test_mutants.py": (
        PROCESS,
        "test_verdicts_resume_after_a_line_cut_short",
    ),
    "tests/trainers/test_averaged_statistics.py": (
        TRACES,
        "test_averaged_statistics_come_nearer_to_one_pass_over_the_data_than_moving_ones",
    ),
    "tests/test_essence.py": (
        TRACES,
        "test_essence_has_the_engine_s_numbers_on_two_replicas",
    ),
    "tests/trainers/test_compile.py": (
        COMPILED,
        "test_auto_measures_without_training_and_is_remembered",
    ),
    "tests/trainers/test_going_back.py": (
        TRACES,
        "test_stream_resumes_past_bad_steps_and_ends_the_same_if_killed",
    ),
    "tests/trainers/test_meshes.py": (
        TRACES,
        "test_run_on_a_mesh_has_the_metrics_of_one_device",
    ),
    "tests/trainers/test_observing.py": (
        TRACES,
        "test_observers_change_no_bit_of_a_run",
    ),
    "tests/trainers/test_policies.py": (
        TRACES,
        "test_bad_steps_are_skipped_until_too_many_come_in_a_row",
        "test_rollback_returns_to_the_beginning_if_nothing_was_saved_since_and_ends_by_its_limit",
    ),
    "tests/trainers/test_python_run.py": (
        TRACES,
        "test_run_that_failed_or_was_stopped_resumes_and_longer_settings_continue_it",
    ),
    "tests/trainers/test_refused_by_xla.py": (
        COMPILED,
        "test_auto_leaves_xla_out_if_it_cannot_compile_the_task_any_more_and_names_the_line",
    ),
    "tests/trainers/test_same_numbers.py": (
        COMPILED,
        "test_xla_changes_rounding_alone",
    ),
    "tests/trainers/test_streams.py": (
        PROCESS,
        "test_closed_streams_end_up_in_no_file",
    ),
    "tests/trainers/test_own_strategy.py": (
        COMMANDS,
        "test_strategy_in_a_file_of_its_own_serves_every_mode",
    ),
    "tests/trainers/tune/test_tune.py": (
        COMMANDS,
        "test_a_signal_ends_it_with_what_was_found_until_then",
    ),
    "tests/trainers/test_export.py": (
        COMMANDS,
        "test_custom_task_is_exported_and_used_by_tensorflow",
    ),
    "tests/trainers/hooks/test_texts.py": (
        COMMANDS,
        "test_texts_are_shown_while_a_model_trains_and_written_on_demand",
    ),
    "tests/trainers/hooks/test_hooks_register.py": (
        PROCESS,
        "test_hook_is_imported_that_a_selector_names_and_all_are_for_a_name_that_gin_does_not_know",
    ),
    "tests/trainers/test_files_of_a_training.py": (
        PROCESS,
        "test_training_passes_through_few_files",
    ),
    "tests/trainers/test_resume.py": (
        COMMANDS,
        "test_killed_twice_and_started_again",
    ),
    "tests/served/test_served_training.py": (
        TRACES,
        "test_served_run_at_one_worker_is_the_synchronous_run_to_the_bit",
    ),
    "tests/benchmarks/test_side_by_side.py": (
        PROCESS,
        "test_program_of_ours_learns_and_a_missing_peer_is_a_row",
    ),
    "tests/conformance/test_extremes.py": (
        TRACES,
        "test_outputs_and_gradients_are_those_of_float64",
    ),
    "tests/core/engine/test_curvature_estimates.py": (
        TRACES,
        "test_step_is_that_of_the_specification",
    ),
    "tests/core/engine/test_loss_scale.py": (
        TRACES,
        "test_a_scale_changes_no_bit_in_float32",
        "test_a_scale_changes_no_bit_on_a_mesh",
    ),
    "tests/core/engine/test_recompute_by_path.py": (
        TRACES,
        "test_same_numbers_on_replicas_and_microbatches",
    ),
    "tests/core/layers/test_tiled_attention.py": (
        COMPILED,
        "test_gradients_of_tiles_are_finite_differences",
        "test_tiles_in_a_graph_are_those_of_eager_code",
    ),
    "tests/core/optimizers/test_optimizer_transform.py": (
        TRACES,
        "test_replicas_apply_kernels_under_a_flag_as_one_device_does",
    ),
    "tests/core/test_checkpoint.py": (
        PROCESS,
        "test_a_kill_at_any_moment_leaves_a_whole_checkpoint",
    ),
    "tests/trainers/average/test_average_command.py": (
        COMMANDS,
        "test_greedy_soup_of_two_runs_is_at_least_as_good_as_each",
        "test_last_checkpoints_are_averaged_for_evaluation_export_and_python",
    ),
    "tests/trainers/curvature/test_curvature.py": (
        TRACES,
        "test_product_is_that_with_the_whole_hessian",
    ),
    "tests/trainers/diagnose/test_one_device.py": (
        COMMANDS,
        "test_a_slow_source_is_named_and_parallel_calls_are_shown_to_hide_it",
    ),
    "tests/trainers/dry_run/test_budget.py": (
        TRACES,
        "test_budget_below_the_variables_is_refused",
        "test_estimate_falls_with_microbatches_and_recomputation",
        "test_resumed_run_keeps_its_choice",
    ),
    "tests/trainers/dry_run/test_least_time.py": (
        TRACES,
        "test_step_without_products_takes_time_too",
    ),
    "tests/trainers/hooks/test_stop.py": (
        COMMANDS,
        "test_command_stops_saves_and_resumes",
    ),
    "tests/trainers/launch/test_many_workers.py": (
        PROCESS,
        "test_a_lost_worker_ends_the_run_and_is_named",
        "test_workers_end_where_one_process_does",
    ),
    "tests/trainers/test_averaged_teacher.py": (
        TRACES,
        "test_averages_are_the_same_on_two_devices_and_compiled",
    ),
}
SLOW = {f"{file}::{name}": why for file, (why, *names) in _BY_FILE.items() for name in names}

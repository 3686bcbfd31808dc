"""Known failures of kinds of sandboxes, with reasons. Tests check that they really fail."""

from collections.abc import Mapping

from harbor_gym.sandboxes.docker.engine import DAEMON_LIMITS

type Reasons = Mapping[str, str]
"""Behaviour → why it does not hold."""


def _for(reason: str, *behaviours: str) -> dict[str, str]:
    return dict.fromkeys(behaviours, reason)


FAKE: Reasons = {
    **_for(
        "it runs no processes",
        "a_death_by_signal_is_128_and_the_signal",
        "a_timed_out_command_is_dead",
        "a_cancelled_command_is_dead",
        "a_process_left_behind_holds_nothing_up",
        "a_daemon_lives_on_between_commands",
        "orphans_are_reaped",
        "an_executable_stays_one",
        "two_sandboxes_share_no_processes",
        "a_closed_terminal_leaves_no_process",
    ),
    **_for(
        "it has no accounts, only names",
        "a_user_goes_by_name",
        "a_user_goes_by_uid",
        "a_user_goes_by_uid_and_gid",
        "a_user_that_is_not_there_is_refused",
        "a_user_stays_who_it_was",
        "an_ordinary_user_is_no_root",
        "is_file_and_is_dir_ask_as_the_user",
    ),
    **_for(
        "it knows a few words of shell and is no bash",
        "commands_are_read_by_bash",
        "bytes_that_are_no_text_are_replaced",
        "large_output_is_whole",
        "a_file_comes_back_byte_for_byte",
    ),
    **_for(
        "it has no image, so it reads none",
        "cwd_is_the_images_by_default",
        "a_workdir_is_made_again",
        "env_of_image_task_and_trial_arrive",
    ),
    **_for(
        "it runs no processes and has no kernel",
        "no_program_of_the_host_is_reached",
        "root_inside_is_root_of_its_own_namespace",
        "terminals_end_at_the_sandboxs_own_limit",
        "open_files_end_at_the_processs_own_limit",
        "socket_buffers_end_at_the_sandboxs_own_limit",
        "the_first_process_is_closed",
        "the_kernels_memory_is_hidden",
        "system_calls_are_filtered",
        "no_program_inside_takes_part_in_transfers",
        "a_verifier_sees_the_image_and_what_counts",
        "what_ran_before_the_policy_is_closed_to_it",
        "a_verifier_is_closed_to_all_outside_of_its_view",
        "a_verifiers_directories_can_be_its_own",
        "no_program_inside_takes_part_in_directory_calls",
        "a_set_up_runs_with_the_images_programs",
    ),
    **_for(
        "it has no links",
        "an_upload_follows_no_link_to_the_host",
        "a_download_leads_to_nothing_of_the_host",
    ),
}

CONTAINERS: Reasons = {
    **_for(
        "the daemon's containers have the machine's own user namespace, unless it is set to remap users",
        "root_inside_is_root_of_its_own_namespace",
    ),
    **_for("the machine's pseudo-terminals are one number for all", "terminals_end_at_the_sandboxs_own_limit"),
    **DAEMON_LIMITS,
    **_for("root inside may trace the first process, which has no right more", "the_first_process_is_closed"),
    **_for("Docker hides less: kpagecount, slabinfo and others are the machine's", "the_kernels_memory_is_hidden"),
    **_for(
        "a container has no second root for its verifier",
        "a_verifier_sees_the_image_and_what_counts",
        "a_verifier_is_closed_to_all_outside_of_its_view",
        "a_verifiers_directories_can_be_its_own",
        "a_set_up_runs_with_the_images_programs",
    ),
    **_for("all commands of a container have the same rights", "what_ran_before_the_policy_is_closed_to_it"),
    **_for(
        "Harbor asks for directories by the container's own shell", "no_program_inside_takes_part_in_directory_calls"
    ),
    **_for("Docker looks users up in the container's own /etc/passwd", "a_user_stays_who_it_was"),
}
"""Confinement that root can break by the rights of an ordinary Docker container."""

HARBORS_DOCKER: Reasons = {
    **CONTAINERS,
    **_for("Harbor reads stderr merged into stdout", "stderr_is_told_apart"),
    **_for(
        "the command is one argument of the docker client, and Linux takes 128 KiB in one",
        "long_commands_are_run",
    ),
    **_for(
        "only the docker client is killed; the process inside runs on",
        "a_timed_out_command_is_dead",
        "a_cancelled_command_is_dead",
    ),
    **_for("a missing folder is copied as an empty one", "an_upload_that_has_no_source_raises"),
    **_for("`docker cp` keeps links as they are, wherever they lead", "a_download_leads_to_nothing_of_the_host"),
}

KNOWN_FAILURES: Mapping[str, Reasons] = {
    "harbor.environments.docker.docker:DockerEnvironment": HARBORS_DOCKER,
}
"""Known failures of classes (and their subclasses) that can't declare them: ``module:Class`` → reasons.

A class of yours declares them by an attribute ``known_failures``, which replaces the entry here."""

"""Requirements on ``exec``: output, status, directory, environment, users."""

import asyncio
import os

from harbor_gym.testing.conformance.behaviours import Family, expect, expect_equal
from harbor_gym.testing.conformance.probe import GID, IMAGE_ENV, IMAGE_WORKDIR, TASK_WORKDIR, UID, USER, Probe

COMMANDS = Family[Probe]("commands")
ENVIRONMENT = Family[Probe]("environment")
USERS = Family[Probe]("users")

_LARGE_OUTPUT_BYTES = 1_000_000
_LONG_COMMAND_BYTES = 200_000
"""More than the 128 KiB that Linux takes in one argument."""


@COMMANDS.behaviour
async def stdout_arrives_as_it_was_printed(probe: Probe) -> None:
    """A command's output comes back unchanged, with its spaces and final line feed."""
    result = await probe.run("echo '  two  spaces '; echo second")
    expect_equal(result.stdout, "  two  spaces \nsecond\n", "stdout")


@COMMANDS.behaviour
async def stderr_is_not_lost(probe: Probe) -> None:
    """A command's error output comes back, in ``stderr`` or merged into ``stdout``."""
    result = await probe.run("echo complaint >&2")
    expect("complaint" in f"{result.stdout or ''}{result.stderr or ''}", "stderr came back nowhere")


@COMMANDS.behaviour
async def stderr_is_told_apart(probe: Probe) -> None:
    """``stdout`` and ``stderr`` hold one stream each."""
    result = await probe.run("echo out; echo err >&2")
    expect_equal((result.stdout, result.stderr), ("out\n", "err\n"), "stdout and stderr")


@COMMANDS.behaviour
async def the_exit_code_is_the_commands_own(probe: Probe) -> None:
    """A failing command returns its exit status unchanged and raises no exception."""
    for code in (0, 1, 37, 255):
        expect_equal((await probe.run(f"exit {code}")).return_code, code, "return_code")


@COMMANDS.behaviour
async def a_death_by_signal_is_128_and_the_signal(probe: Probe) -> None:
    """A command killed by a signal has the exit status that shells report: 128 plus the signal's number."""
    expect_equal((await probe.run("kill -TERM $$")).return_code, 143, "return_code after SIGTERM")


@COMMANDS.behaviour
async def commands_are_read_by_bash(probe: Probe) -> None:
    """Harbor's tasks rely on bash, not only on sh."""
    expect_equal(
        await probe.output("[[ ab == a* ]] && x=(1 2 3) && echo ${#x[@]} <(:) | cut -c1"), "3", "bash's answer"
    )


@COMMANDS.behaviour
async def silence_is_empty_output(probe: Probe) -> None:
    """A command that prints nothing has empty streams (or None), without any text about the silence."""
    result = await probe.run("true")
    expect_equal((result.stdout or "", result.stderr or ""), ("", ""), "stdout and stderr of `true`")


@COMMANDS.behaviour
async def several_lines_are_one_script(probe: Probe) -> None:
    """Line feeds separate commands, and later lines see what earlier ones set."""
    expect_equal(await probe.output("word=one\necho $word\necho two"), "one\ntwo", "stdout")


@COMMANDS.behaviour
async def quotes_and_specials_reach_the_shell_untouched(probe: Probe) -> None:
    """No layer on the way reads the command: quotes, dollars, backslashes and percent signs arrive."""
    expect_equal(await probe.output(r"""echo 'a"b $x `c` \n %s %PATH% !'"""), r'a"b $x `c` \n %s %PATH% !', "stdout")


@COMMANDS.behaviour
async def unicode_goes_in_and_out(probe: Probe) -> None:
    """Commands and output are UTF-8."""
    expect_equal(await probe.output("echo 'žluťoučký 猫 🐈'"), "žluťoučký 猫 🐈", "stdout")


@COMMANDS.behaviour
async def bytes_that_are_no_text_are_replaced(probe: Probe) -> None:
    """Output that is not UTF-8 neither raises nor loses the rest: U+FFFD replaces the undecodable bytes."""
    expect_equal(await probe.output(r"printf 'a\xffb'"), "a\ufffdb", "stdout")


@COMMANDS.behaviour
async def large_output_is_whole(probe: Probe) -> None:
    """A megabyte of output comes back to the last byte, without a deadlock."""
    answer = await probe.output(f"head -c {_LARGE_OUTPUT_BYTES} /dev/zero | tr '\\0' x; echo; echo end")
    expect(answer.endswith("x\nend"), "the end of the output is missing")
    expect_equal(len(answer), _LARGE_OUTPUT_BYTES + len("\nend"), "length of the output")


@COMMANDS.behaviour
async def long_commands_are_run(probe: Probe) -> None:
    """A command may be longer than the 128 KiB that one argument of a process can hold."""
    expect_equal(await probe.output(f": {'x' * _LONG_COMMAND_BYTES}\necho end"), "end", "stdout")


@COMMANDS.behaviour
async def stdin_is_empty(probe: Probe) -> None:
    """A command that reads its input gets end-of-file at once."""
    expect_equal(await probe.output("cat; echo ended", timeout_sec=20), "ended", "stdout")


@COMMANDS.behaviour
async def a_nul_is_refused_and_harms_nothing(probe: Probe) -> None:
    """A command with a NUL raises or fails, and the sandbox still works afterwards."""
    try:
        result = await probe.run("echo before\0after")
    except Exception:  # any refusal will do
        pass
    else:
        expect(result.return_code != 0, "a command with a NUL was run as if it were another one")
    expect_equal(await probe.output("echo well"), "well", "stdout of the next command")


@COMMANDS.behaviour
async def twenty_at_once_keep_their_answers_apart(probe: Probe) -> None:
    """Commands run concurrently, and each caller gets its own answer."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(probe.output(f"sleep 0.05; echo number {number}")) for number in range(20)]
    expect_equal([task.result() for task in tasks], [f"number {number}" for number in range(20)], "answers")


# --- directory and variables -----------------------------------------------------------------------------------------


@ENVIRONMENT.behaviour
async def cwd_is_the_calls(probe: Probe) -> None:
    """The command runs in ``cwd``."""
    await probe.run("mkdir -p '/srv/a place'")
    expect_equal(await probe.output("pwd", cwd="/srv/a place"), "/srv/a place", "pwd")


@ENVIRONMENT.behaviour
async def cwd_is_the_images_by_default(probe: Probe) -> None:
    """Without ``cwd`` and without a task's ``workdir`` a command runs in the image's WORKDIR."""
    expect_equal(await probe.output("pwd"), IMAGE_WORKDIR, "pwd")


@ENVIRONMENT.behaviour
async def cwd_is_the_tasks_where_it_names_one(probe: Probe) -> None:
    """``[environment] workdir`` comes before the image's WORKDIR, and after the call's ``cwd``."""
    other = await probe.other()
    expect_equal(await probe.output("pwd", sandbox=other), TASK_WORKDIR, "pwd")
    expect_equal(await probe.output("pwd", sandbox=other, cwd="/tmp"), "/tmp", "pwd with a cwd")


@ENVIRONMENT.behaviour
async def a_cwd_that_is_not_there_is_refused(probe: Probe) -> None:
    """With a ``cwd`` that does not exist the call raises or fails; the command does not run elsewhere."""
    try:
        result = await probe.run("pwd", cwd="/no/such/place")
    except Exception:  # any refusal will do
        return
    expect(result.return_code != 0, f"the command ran in {result.stdout!r} instead of /no/such/place")


@ENVIRONMENT.behaviour
async def a_directory_change_ends_with_its_command(probe: Probe) -> None:
    """Every command starts afresh: ``cd`` and variables of one don't affect the next."""
    before = await probe.output("pwd; cd /tmp; export LEFT=over")
    expect_equal(await probe.output('pwd; echo "[$LEFT]"'), f"{before}\n[]", "the next command's state")


@ENVIRONMENT.behaviour
async def env_arrives_with_newlines_and_quotes(probe: Probe) -> None:
    """Values of ``env`` arrive unchanged, with any characters."""
    value = "a=b\nc \"d\" 'e' $HOME `f` \\n ü"
    expect_equal(await probe.output('echo "$VALUE"', env={"VALUE": value}), value, "the variable")


@ENVIRONMENT.behaviour
async def env_of_image_task_and_trial_arrive(probe: Probe) -> None:
    """The image's ENV, the task's ``[environment] env`` and the trial's are set; the trial's wins over the task's."""
    answer = await probe.output('echo "$IMAGE_SAYS, $TASK_SAYS, $TRIAL_SAYS"')
    expect_equal(answer, f"{IMAGE_ENV}, hello task, hello trial", "variables of image, task and trial")


@ENVIRONMENT.behaviour
async def env_of_the_call_wins(probe: Probe) -> None:
    """A call's ``env`` overrides the image's, the task's and the trial's for that call only."""
    ours = {"IMAGE_SAYS": "1", "TASK_SAYS": "2", "TRIAL_SAYS": "3"}
    expect_equal(await probe.output("echo $IMAGE_SAYS$TASK_SAYS$TRIAL_SAYS", env=ours), "123", "overridden variables")
    expect_equal(await probe.output("echo $TRIAL_SAYS"), "hello trial", "the variable of the next call")


@ENVIRONMENT.behaviour_alone
async def env_of_the_host_stays_out(probe: Probe) -> None:
    """No variable of the calling process, such as an API key, is visible inside."""
    name = "HARBOR_GYM_CHECK_SECRET"
    os.environ[name] = "hunter2"
    try:
        answer = await probe.output("env; cat /proc/self/environ 2>/dev/null; true")
    finally:
        del os.environ[name]
    expect("hunter2" not in answer, "a variable of the calling process reached the sandbox")


# --- users -----------------------------------------------------------------------------------------------------------


@USERS.behaviour
async def root_is_to_be_had(probe: Probe) -> None:
    """``user="root"`` is uid 0 of the sandbox; Harbor's own work (verifier, logs) needs it."""
    expect_equal(await probe.output("id -u; id -un", user="root"), "0\nroot", "id")


@USERS.behaviour
async def a_user_goes_by_name(probe: Probe) -> None:
    """A user's name is looked up in the sandbox, and its home and primary group come with it."""
    answer = await probe.output('echo "$(id -u) $(id -g) $HOME"', user=USER)
    expect_equal(answer, f"{UID} {UID} /home/{USER}", "uid, gid, home")


@USERS.behaviour
async def a_user_goes_by_uid(probe: Probe) -> None:
    """A number as ``user`` selects the user with that uid."""
    expect_equal(await probe.output("id -un", user=UID), USER, "name")


@USERS.behaviour
async def a_user_goes_by_uid_and_gid(probe: Probe) -> None:
    """``uid:gid`` sets both."""
    expect_equal(await probe.output("id -u; id -g", user=f"{UID}:{GID}"), f"{UID}\n{GID}", "uid and gid")


@USERS.behaviour
async def a_user_that_is_not_there_is_refused(probe: Probe) -> None:
    """With an unknown user the call raises or fails; the command does not run as another user."""
    try:
        result = await probe.run("id -un", user="nobody-by-this-name")
    except Exception:  # any refusal will do
        return
    expect(result.return_code != 0, f"the command ran as {result.stdout!r} instead")


@USERS.behaviour_alone
async def the_default_user_counts_where_no_user_is_given(probe: Probe) -> None:
    """``default_user``, which Harbor sets to the task's ``agent.user``, applies to calls that name no user."""
    with probe.sandbox.with_default_user(USER):
        expect_equal(await probe.output("whoami"), USER, "name by default")
        expect_equal(await probe.output("whoami", user="root"), "root", "name where one is given")


@USERS.behaviour
async def an_ordinary_user_is_no_root(probe: Probe) -> None:
    """A user can't write root's files, and can write its own home and /tmp."""
    script = "touch /etc/mine 2>/dev/null && echo wrong; touch ~/mine /tmp/$$.mine && echo right"
    expect_equal(await probe.output(script, user=USER), "right", "what an ordinary user can write")


@USERS.behaviour
async def is_file_and_is_dir_ask_as_the_user(probe: Probe) -> None:
    """``is_file(path, user)`` looks with that user's permissions."""
    await probe.output("mkdir -pm 700 /srv/own && touch /srv/own/file")
    expect(await probe.sandbox.is_file("/srv/own/file", user="root"), "root does not see its own file")
    expect(not await probe.sandbox.is_file("/srv/own/file", user=USER), f"{USER} sees a file in root's own folder")

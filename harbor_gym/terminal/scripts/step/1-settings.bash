# Type each command, wait for it as long as it takes, then show the screen: that is a step.
# With the script for a file or, where the policy has removed that, as the text of `bash -c` and `server` in the environment,
# `step STEP` takes one; `again STEP` takes one that another process may have begun; `load` leaves it to others to call what
# is defined here, in their own directory: `serve NONCE` takes steps from standard input, the length of each before it in
# eight digits, until it ends or is to become another script.
# STEP is the frame's nonce, the byte limit of a frame, the number of the first command, then three words per command:
# wait in ms as <busy>/<idle>, or with =<ms> exactly that long; kind; payload.
#   kind "keys": payload is a tmux key name; "hex": bytes as hex words with commas between; "base64": bytes in base64;
#   "file": the name of a file with bytes in base64, sent ahead; "text": what tmux reads itself, in hex; "none": nothing.
# Some environments merge the error stream into the answer, and the policy may delete any file at any moment.
#
# The variables that functions share. The session (set once by whoever serves):
#   dir          the session's directory: socket, step, rc, options, pane, path, channel, client, text, visible. Its disk
#                may be full: what counts is written over what has its place there, or stays in tmux
#   session      the nonce in the marks of the pane's prompts      shell server tty   the pane's shell, tmux, terminal
#   step seldom  this script, where it was not read from its file; functions that are not read yet
#   tmux         the program          is_resident   where this process takes more steps than one: what its caller knows it by
# The control client (2-tmux):
#   to from      descriptors to and from it     client  its pid    greeting   what it printed before it was attached
#   asked        number of questions so far
#   reply        all that tmux printed to the last question      answer    what each of its commands printed
#   news         set when the window was renamed: there may be a new mark
# The prompt (3-marks):
#   mark kind    the latest mark "<pid>:<count>:<exit code>" and its kind p, m, r; "0:0:" and "" where there is none
#   taken taken_mark taken_kind           tmux's path of the pane that was parsed last, and what it says
#   typed        the mark from before the keys          screen is_dead is_full   what the pane shows, and its state
#   state_line   the first line of screen                tell_mark   the command by which tmux prints it and the mark
# The kernel's view (4-processes, 5-verdicts):
#   state group terminal terminal_group threads   of the process that was read last    runtime  its time on a processor
#   call first … fifth                    the system call that it waits in       modes    the terminal's
#   foreground members                    the terminal's foreground group
#   descendants                           the shell and all below it  runtimes of them, before the keys
#   parents strangers                     of the descendants; those that have another terminal, or none
#   terminals_within within               see `find_within` and `examine_within`
#   thread_counts                         of them and the members     tasks     the paths of a process's threads
#   limit                                 see `read_limit`            prompt statement   see `read_prompt`
#   evidence patience reader is_hidden is_mixed has_peers is_relayed is_tended is_go timer   see `examine`
#   blocker blocker_ran is_asleep         see `note_blocker`
#   terminals                             the descriptors that another user's process has of the terminal
# The step (6-waiting … 9-serving):
#   nonce limit number begun    the frame's nonce and byte limit, the current and the first command's number
#   tell save capture           the commands by which tmux prints the captured screen's state, saves the screen, captures it
#   idle is_early end next_look place words size request
#                               those of the functions around all others: bash looks each name up among the local ones
#                               of every function that runs, before it finds the script's
#   is_last may_capture         set for the step's last command, and while it waits unless more than a prompt ends that
#   is_captured                 1 where tmux has captured the screen at that prompt; maybe where its answer was lost
#   held                        the part of the answer that is not printed yet
#   waits why                   how the waits so far have ended, and this one
#   now started                 on the clock, in ms       last_screen last_spent   what was seen at the last look
#   settle_next                           how long the next look for a settled terminal takes, in s
#   looks_skipped                         how many looks at the screen were skipped as the foreground slept
#   quiet_since idle_since      since when the screen was quiet, and the programs; spent_then   what they had spent then
#   polls                       how often they have looked up since
#   raw_looks                   for how many looks the terminal has been raw, where nobody else reports it
#   keys_end_line types_ahead can_settle needs_run   see `note_keys`
#   untyped                     where nobody has to run: the screen from before the keys
#   screen_before prompt_before statement_before    of a line editor that the keys go to: see `read_prompt`
#   signed                      the second of the last sign of life
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole
exec 2>/dev/null
LC_ALL=C
if [ "$1" != load ]; then
    dir=${BASH_SOURCE[0]:-$0}
    dir=${dir%/*}
    session=@${dir##*/.terminal-} tmux='' step=$BASH_EXECUTION_STRING seldom=''
fi
# Not from the environment, which is the image's: the tests of the verdicts replace it after loading.
proc=/proc pts=/dev/pts
signed=-1 held='' answer=() reply='' to='' from='' client='' is_resident='' asked=0 news='' mark=0:0: kind=''
taken='' taken_mark=0:0: taken_kind=''
quiet_ms=120 soon_sec=0.005 settle_sec=0.015 settle_next=0.015 patience_sec=0.01 polling_ms=350 tended_ms=2000 long_ms=3000
case $HOSTTYPE in
    x86_64)
        sys_read=0 sys_write=1 sys_select=' 23 270 ' sys_poll=' 7 271 ' sys_epoll=' 232 281 ' sys_wait=' 61 247 130 34 '
        sys_futex=202 sys_sigwait=128 sys_timespec=' 271 270 23 '
        ;;
    aarch64 | arm64)
        sys_read=63 sys_write=64 sys_select=' 72 ' sys_poll=' 73 ' sys_epoll=' 22 ' sys_wait=' 260 95 133 '
        sys_futex=98 sys_sigwait=137 sys_timespec=' 73 72 '
        ;;
    *)
        sys_read=none sys_write=none sys_select='' sys_poll='' sys_epoll='' sys_wait='' sys_futex=none sys_sigwait=none
        sys_timespec=''
        ;;
esac

# True when whoever asked for this step has gone, or asks for the next one.
is_abandoned() { [[ -n $is_resident ]] && read -rt 0; }

# Shows every second that this process is alive to whoever asked for the step.
heartbeat() {
    [[ -n $is_resident ]] && ((SECONDS != signed)) || return
    signed=$SECONDS
    printf '%s .\n' "$nonce"
}

# Where /proc is hidden the wall clock has to do.
read_clock() {
    local up
    if read -r up _ <"$proc/uptime"; then
        now=$((10#${up/./} * 10))
    else
        up=${EPOCHREALTIME/[.,]/}
        now=$((10#${up:-${SECONDS}000000} / 1000))
    fi
}

#!/bin/bash -p
# Grade the end state: reward 1 only if every check holds. Each failed check is one line on stdout.
# Nothing the agent could have left in the environment, on PATH or in its own shell files is used.
PATH=/usr/bin:/bin
unset BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH IFS
cd / || exit 1
umask 022

readonly APPCTL_SHA256=03f8baf08adfed09647e78ae4f008241352f274b0ad5e0d832b7926e74388e42
readonly SERVE_SHA256=a99c24d67867bc9415ad676e00fd902ff85bd1d7f58e7e7078162e97cab982e0
readonly KEY_SHA256=11b5b6d462262b681ee63d74fa10d7410d08fc5cd6e3c02f84c1575d04847822
readonly SPOOL=/var/spool/app
readonly KEY=/etc/app/key
readonly PID_FILE=/srv/app/app.pid
readonly VERDICT_DIR=/logs/verifier
readonly ANSWER_TENTHS=100 # how long a request may wait for its answer, in tenths of a second

failures=0
fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

sha256() { sha256sum <"$1" | cut -d ' ' -f 1; }

is_plain_file() { [ -f "$1" ] && [ ! -L "$1" ]; }

discard_old_verdict() {
    [ ! -L "$VERDICT_DIR" ] || rm -f "$VERDICT_DIR"
    mkdir -p "$VERDICT_DIR"
    rm -rf "$VERDICT_DIR/reward.txt" "$VERDICT_DIR/reward.json"
}

stop_services() {
    local process
    for process in /proc/[0-9]*; do
        if tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q '/srv/app/serve'; then
            kill -9 "${process#/proc/}" 2>/dev/null
            # As appctl stop does: until somebody collects it, a dead process looks like another program.
            if is_plain_file "$PID_FILE" && [ "$(cat "$PID_FILE")" = "${process#/proc/}" ]; then rm -f "$PID_FILE"; fi
        fi
    done
}

check_original() { # path, checksum
    is_plain_file "$1" || { fail "$1 is missing or not a plain file"; return; }
    [ "$(sha256 "$1")" = "$2" ] || fail "$1 was changed"
}

check_modes() {
    local mode
    [ -x /srv/app/serve ] || fail "/srv/app/serve is not executable"
    [ -x /usr/local/bin/appctl ] || fail "/usr/local/bin/appctl is not executable"
    [ -e "$KEY" ] || return
    mode=$(stat -c '%u %a' "$KEY")
    case $mode in
        '0 600' | '0 400') ;;
        *) fail "$KEY has owner and mode '$mode', expected '0 600'" ;;
    esac
}

check_settings() {
    local conf=/etc/app/app.conf line name
    local -A expected=([key]=$KEY [spool]=$SPOOL [suffix]=ans [interval]=0.2 [log]=/var/log/app.log) found=()
    is_plain_file "$conf" || { fail "$conf is missing or not a plain file"; return; }
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            '' | '#'*) ;;
            [a-z]*=*)
                name=${line%%=*}
                [ -n "${expected[$name]-}" ] || fail "$conf has an unknown setting: $line"
                found[$name]=${line#*=}
                ;;
            *) fail "$conf has a line that is no setting: $line" ;;
        esac
    done <"$conf"
    for name in "${!expected[@]}"; do
        [ "${found[$name]-}" = "${expected[$name]}" ] ||
            fail "$conf: $name is '${found[$name]-}', expected '${expected[$name]}'"
    done
}

answer_to() { { cat "$KEY"; printf '%s\n' "$1"; } | sha256sum | cut -d ' ' -f 1; } # request text

check_waiting_request() { # name, request text
    local request=$SPOOL/$1.req answer=$SPOOL/$1.ans text
    if is_plain_file "$request"; then
        # A service that has just been killed may have an `rm` under way, of what it had answered.
        text=$(cat "$request" 2>/dev/null)
        if [ "$text" != "$2" ] && is_plain_file "$request"; then fail "$request was changed"; fi
    fi
    is_plain_file "$request" || is_plain_file "$answer" || fail "the request $1 is lost"
}

check_answer() { # name, request text
    local answer=$SPOOL/$1.ans tenths=0
    until [ -f "$answer" ] || [ "$tenths" -ge "$ANSWER_TENTHS" ]; do
        sleep 0.1
        tenths=$((tenths + 1))
    done
    is_plain_file "$answer" || { fail "the request $1 got no answer"; return; }
    [ "$(cat "$answer")" = "$(answer_to "$2")" ] || fail "the answer to the request $1 is wrong"
}

check_service() {
    local fresh_text name output
    fresh_text="probe $(cat /proc/sys/kernel/random/uuid)"
    name="probe-$RANDOM$RANDOM"
    stop_services # again: a service that was just being started had no command line yet
    if ! output=$(env -i PATH=/usr/bin:/bin timeout 10 /usr/local/bin/appctl start); then
        fail "appctl start says: $output"
        return
    fi
    printf '%s\n' "$fresh_text" >"$SPOOL/$name.part"
    mv "$SPOOL/$name.part" "$SPOOL/$name.req"
    check_answer "$name" "$fresh_text"
    check_answer 1041 'invoice 1041'
    check_answer 1042 'invoice 1042'
    env -i PATH=/usr/bin:/bin timeout 10 /usr/local/bin/appctl status >/dev/null || fail "the service did not stay up"
    stop_services
}

discard_old_verdict
stop_services
[ ! -e /etc/ld.so.preload ] || fail "/etc/ld.so.preload exists"
check_original /usr/local/bin/appctl "$APPCTL_SHA256"
check_original /srv/app/serve "$SERVE_SHA256"
check_original "$KEY" "$KEY_SHA256"
check_modes
check_settings
if [ -d "$SPOOL" ] && [ ! -L "$SPOOL" ]; then
    check_waiting_request 1041 'invoice 1041'
    check_waiting_request 1042 'invoice 1042'
else
    fail "$SPOOL is missing or not a directory"
fi
# The service runs only once its programs are known to be the original ones.
[ "$failures" -gt 0 ] || check_service

if [ "$failures" -eq 0 ]; then reward=1; else reward=0; fi
discard_old_verdict
echo "$reward" >"$VERDICT_DIR/.verdict"
mv -f "$VERDICT_DIR/.verdict" "$VERDICT_DIR/reward.txt"
echo "reward $reward, failed checks $failures"

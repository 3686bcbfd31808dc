# Talking to tmux.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# A control client saves a fork for every word with tmux. $@ are its options, and what it does before it attaches to the
# session; sets greeting to what it says until then. Told at the same moment that it wants no output, it has none yet:
# where tmux 3.3 has some to tell when it is told so, it never says another word.
# shellcheck disable=SC2120  # the opening has something to pass
connect() {
    local line
    greeting=()
    coproc CONTROL {
        exec "$tmux" -u -S "$dir/socket" -C "$@" attach-session -t main \; refresh-client -F no-output
    }
    # shellcheck disable=SC2153
    client=$CONTROL_PID
    exec {from}<&"${CONTROL[0]}" {to}>&"${CONTROL[1]}" || return
    eval "exec ${CONTROL[0]}<&- ${CONTROL[1]}>&-"
    while IFS= read -ru "$from" line; do
        if [[ $line == %session-changed* ]]; then
            ask_at_last attached && return
            break
        fi
        greeting+=("$line")
    done
    disconnect
}

disconnect() {
    [ -n "$to" ] && exec {to}>&- {from}<&-
    to='' from=''
}

# Runs tmux commands through the control client; sets answer to the lines they print. Each is one argument, written as
# both tmux and a shell read it: every word that this script takes costs time.
ask() {
    local IFS='' line block left=$#
    answer=()
    tell "$@" || return
    while read -ru "$from" line; do
        [[ $line == '%begin '* ]] || continue
        block=${line#%begin }
        while read -ru "$from" line && [ "$line" != "%end $block" ]; do
            [ "$line" != "%error $block" ] || return 1
            answer+=("$line")
        done
        [ -n "$line" ] || break
        ((--left)) || return 0
    done
    disconnect
    return 1
}

# The same for commands that bring others along or have nothing to say: answer is what $1 expands to after the others.
# bash takes longer for many lines than for one long one, so all is read in one. Its end is a command of its own, which
# runs whatever becomes of the others.
ask_at_last() {
    local IFS='' part text='' failed='' last="$nonce. " end="$RANDOM$RANDOM$((++asked))"
    answer=()
    tell "${@:2}" "display-message -p -t %0 '$last$1'"$'\n'"display-message -p '$end~'" || return
    while read -r -d '~' -u "$from" part; do
        [[ $part == *$'\n%error '* ]] && failed=1
        text+=$part
        if [[ $part == *$'\n'"$end" ]]; then
            [ -z "$failed" ] && [[ $text == *"$last"* ]] || return
            text=${text##*"$last"}
            answer=("${text%%$'\n'*}")
            return 0
        fi
        # What a window is called may hold many.
        text+='~'
        [[ $text == *"$last"* ]] || text=${text##*$'\n'}
    done
    disconnect
    return 1
}

# It goes no further than a client of its own could: a session that only this process can still reach is over.
tell() {
    local text
    [ -n "$to" ] && [ -e "$dir/socket" ] && [ -x "$tmux" ] || return
    printf -v text ' ; %s' "$@"
    # Where the client is gone, reading its answer tells.
    printf '%s\n' "${text:3}" >&"$to" || :
}

# What ask does, by a client of its own where there is no control client.
query() {
    local text
    if [ -n "$to" ]; then ask "$@" && return; fi
    [ -z "$to" ] || return
    printf -v text ' \\; %s' "$@"
    text=$(eval "tm ${text:4}") && mapfile -t answer <<<"$text"
}

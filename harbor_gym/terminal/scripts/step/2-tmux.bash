# Talking to tmux, over a control client that is connected again when it is lost.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# $@ are the client's options, and what it does before it attaches to the session; sets greeting to what it prints until
# then. Output is turned off at the same moment, while there is none yet: where tmux 3.3 has some to report at
# that request, it never answers again.
# shellcheck disable=SC2120  # the opening has something to pass
connect() {
    local line
    greeting=()
    [ -n "$tmux" ] || { hash tmux && tmux=${BASH_CMDS[tmux]}; } || return
    await_last_client
    coproc CONTROL {
        exec "$tmux" -u -S "$dir/socket" -C "$@" attach-session -t main \; refresh-client -F no-output
    }
    # shellcheck disable=SC2153
    client=$CONTROL_PID
    write_over client "$client"
    exec {from}<&"${CONTROL[0]}" {to}>&"${CONTROL[1]}" || return
    eval "exec ${CONTROL[0]}<&- ${CONTROL[1]}>&-"
    while IFS= read -ru "$from" line; do
        if [[ $line == %session-changed* ]]; then
            ask 'display-message -p attached' && return
            break
        fi
        greeting+=("$line")
    done
    disconnect
    return 1
}

# Up to 3.6 the tmux server crashes where one client leaves while a control client introduces itself: it reports the
# leaving to a client that it has not set up yet. So the last client has to be gone before the next one comes.
await_last_client() {
    local turn last=''
    # Its caller may have set the separators for lines.
    [ -e "$dir/client" ] && IFS=" " read -r last <"$dir/client"
    for ((turn = 0; turn < 100; turn++)); do
        is_client "$last" || is_ending "$last" || return
        sleep 0.01
    done
}

# True for a process on its way out: its command line goes first, and what it has open is closed after that, at the latest
# when it is a zombie.
is_ending() {
    local line='' stat=''
    [[ $1 =~ ^[1-9][0-9]{0,9}$ ]] || return
    IFS= read -r -d '' line <"$proc/$1/cmdline"
    [ -z "$line" ] && IFS= read -r -d '' stat <"$proc/$1/stat"
    [ -n "$stat" ] && [[ ${stat##*) } != [ZX]* ]]
}

# Writes a line into a file of the session's without making it anew: that succeeds on a full disk, too.
write_over() { printf '%-40s\n' "$2" 1<>"$dir/$1"; }

# Sets words to the parts of $2 between $1's: a here-string may need a file, and the disk may be full.
split() {
    local rest=$2$1
    words=()
    while [ -n "$rest" ]; do
        words+=("${rest%%"$1"*}")
        rest=${rest#*"$1"}
    done
}

# Sets what is known of the pane; false where the session is gone.
read_pane() {
    read -r shell server tty <"$dir/pane" && return
    restore && query "display-message -p -t %0 '#{pane_pid} #{pane_tty}'" || return
    shell=${answer[0]% *} tty=${answer[0]#* }
    write_over pane "$shell $server $tty"
}

# True where the session can be reached. One that only this process can still reach, over what it has open, is over.
is_reachable() {
    [[ -x $BASH && ( -z $tmux || -x $tmux ) ]] && { [[ -e $dir/socket ]] || restore; } || return
    # Its length, as bash copies the long text itself several times to look at it. A part of the script is worse than none.
    [[ -n $is_resident ]] || ((${#step} == 0)) || [[ -e $dir/step ]] ||
        printf 'seldom=\n%s\n' "$seldom$step" >"$dir/step" || rm -f "$dir/step"
    return 0
}

# Makes the session's directory again where it was removed: the server has its socket there when it gets this signal.
restore() {
    local name='' turn
    read -r name <"$proc/$server/comm" && [[ $name == tmux* ]] || return
    mkdir -p "${dir%/*}" && { [ -d "$dir" ] || mkdir -m 700 "$dir"; } && kill -USR1 "$server" || return
    for ((turn = 0; turn < 200; turn++)); do
        [ -e "$dir/socket" ] && break
        sleep 0.01
    done
    [ -e "$dir/socket" ] || return
    write_over path "$PATH"
    write_over pane "$shell $server $tty"
    write_over client "$client"
    [ -z "$is_resident" ] || write_over channel "$$ $is_resident"
}

# True where process $1 is a client of this session's server.
is_client() { is_called_with "$1" " $dir/socket"; }

disconnect() {
    [ -n "$to" ] && exec {to}>&- {from}<&-
    to='' from=''
}

# Runs tmux commands, all in one go: nothing else happens to the pane in between. Sets answer to what each one printed;
# false where one failed. Each argument is a command, or several, in tmux's own language.
ask() {
    ask_raw "$@"
    take_answer "$reply"
}

# The same, but sets only reply, and is true where a command failed: its caller takes apart what it needs, which is faster.
# bash takes longer for many lines than for one long one, so all is read in few. The end is a command of its own, which
# runs whatever becomes of the others.
ask_raw() {
    local IFS='' part text commands end="$nonce.$((++asked))"
    reply=''
    [[ -n $to ]] || { connect && reply=''; } || return
    printf -v commands ' ; %s' "$@"
    # Where the client is gone, reading its answer fails.
    printf '%s\n' "${commands:3}" "display-message -p '$end\`'" >&"$to" || :
    # bash reads byte by byte up to a character, but at once as many bytes as are certain to come: the two lines of the first
    # command, whatever becomes of it, and the first line of the end.
    read -rN $((36 + ${#end})) -u "$from" part
    text=$'\n'$part
    while read -r -d '`' -u "$from" part; do
        text+=$part
        # bash prepares a text for a pattern character by character.
        if [[ ${text:${#text}-${#end}} == "$end" ]]; then
            # The end of its line, and the line of the command's own end: left there, each would look like news.
            read -ru "$from" part && read -ru "$from" part
            [[ $text == *$'\n%window-renamed '* ]] && news=1
            reply=$text
            return
        fi
        text+='`'
    done
    disconnect
    return 1
}

# Each command's output stands between a line "%begin <block>" and a line "%end <block>".
take_answer() {
    local text=$1 block part
    answer=()
    while [[ $text == *$'\n%begin '* ]]; do
        text=${text#*$'\n%begin '}
        block=${text%%$'\n'*} text=$'\n'${text#*$'\n'}
        part=${text%%$'\n%end '"$block"*}
        if [ "$part" = "$text" ]; then
            # The last block is the question's own end.
            [[ $text != *$'\n%error '"$block"* ]]
            return
        fi
        # Not by its pattern, which takes a time that grows with the square of what stands before.
        text=${text:${#part}+6+${#block}}
        answer+=("${part:1}")
    done
    return 1
}

# The same for commands that may run twice.
query() { ask "$@" || { [ -z "$to" ] && ask "$@"; }; }
query_raw() { ask_raw "$@" || ask_raw "$@"; }

# Waits for so many seconds, or until tmux has something to report. With a limit, bash asks the kernel before each byte: only
# the first has one, as the rest of a line comes with it.
await_news() {
    local line rest=''
    if [[ -z $to ]] && ! connect; then
        sleep "$1"
        return
    fi
    if read -rt "$1" -N 1 -u "$from" line; then
        [[ $line == % ]] && IFS= read -ru "$from" rest
        [[ $rest == window-renamed* ]] && news=1
    elif (($? <= 128)); then
        disconnect
    fi
}

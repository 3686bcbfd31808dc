# Talking to tmux.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# A control client saves a fork for every word with tmux.
connect() {
    local line
    tmux=$(type -P tmux)
    coproc CONTROL { exec tmux -u -S "$dir/socket" -C attach-session -t main; }
    # shellcheck disable=SC2153
    client=$CONTROL_PID
    exec {from}<&"${CONTROL[0]}" {to}>&"${CONTROL[1]}" || return
    eval "exec ${CONTROL[0]}<&- ${CONTROL[1]}>&-"
    while IFS= read -rt 10 -u "$from" line; do
        if [[ $line == %session-changed* ]]; then
            ask refresh-client -F no-output && return
            break
        fi
    done
    disconnect
}

disconnect() {
    [ -n "$to" ] && exec {to}>&- {from}<&-
    to='' from=''
}

# Runs tmux commands through the control client; sets answer to the lines they print.
# It goes no further than a client of its own could: a session that only this process can still reach is over.
ask() {
    local word text='' line block='' left=1
    answer=()
    [ -n "$to" ] && [ -e "$dir/socket" ] && [ -x "$tmux" ] || return
    for word; do
        case $word in
            ';') text+=' ;' && left=$((left + 1)) ;;
            # It answers with as many blocks as it likes: the end is what a last command says.
            if-shell) text+=' if-shell' && left=1000 ;;
            *"'"*) text+=" \"$word\"" ;;
            *) text+=" '$word'" ;;
        esac
    done
    ((left < 1000)) || text+=" ; display-message -p '$nonce.'"
    printf '%s\n' "${text# }" >&"$to"
    while IFS= read -rt 20 -u "$from" line; do
        # Every line costs time: first what most of them are.
        if [[ $line != [%@]* && -n $block ]]; then
            answer+=("$line")
        elif [ -z "$block" ]; then
            [[ $line == '%begin '* ]] && block=${line#%begin }
        elif [ "$line" = "%end $block" ]; then
            block='' left=$((left - 1))
            ((left)) || return 0
        elif [ "$line" = "%error $block" ]; then
            return 1
        elif [ "$line" = "$nonce." ]; then
            return 0
        else
            answer+=("$line")
        fi
    done
    disconnect
    return 1
}

# The same, by a client of its own where there is no control client.
query() {
    local text
    if [ -n "$to" ]; then ask "$@" && return; fi
    [ -z "$to" ] && text=$(tm "$@") && mapfile -t answer <<<"$text"
}

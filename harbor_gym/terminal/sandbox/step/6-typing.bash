# Typing.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# tmux notes the command's number in the same breath as it types, so that nothing is ever typed twice.
type_keys() {
    case $1 in
        keys) if [[ $2 == *"'"* ]]; then send "\"$2\"" "$2"; else send "'$2'" "$2"; fi ;;
        hex)
            # shellcheck disable=SC2086  # hex words are one argument each
            send "-H ${2//,/ }" -H ${2//,/ }
            ;;
        text) send_text "$2" ;;
        base64) printf %s "$2" | base64 -d | paste_keys ;;
        file) base64 -d <"$dir/$2" | paste_keys && rm -f "$dir/$2" ;;
    esac
}

# Has tmux type keys: $1 as it reads them in a line, the other arguments as words of a command line.
send() {
    if [ -n "$to" ]; then
        ask_at_last '' "send-keys -t %0 $1" "set-option -p -t %0 @typed $number" && return
        [ -z "$to" ] || return
        # The control client went away with the keys, or before.
        read_noted && ((noted_number >= number)) && return
    fi
    shift
    # A client's command line reads a final semicolon as the end of a command.
    tm send-keys -t %0 "${@/%;/\\;}" \; set-option -p -t %0 @typed "$number"
}

# What tmux is to read by itself: newlines and quotes have no place in a line for the control client.
send_text() {
    local text to=''
    printf -v text %b "\\x${1//,/\\x}"
    send '' -- "$text"
}

paste_keys() {
    local flags=
    # Newer ones show control characters instead of pasting them, but for this.
    [[ $(tm list-commands paste-buffer </dev/null) =~ \[-[a-zA-Z]*S ]] && flags=-S
    # The keys take their time to get there: another process may have typed them meanwhile.
    tm load-buffer -b keys - \; if-shell -F -t %0 "#{!=:#{@typed},$number}" \
        "paste-buffer -d -r $flags -b keys -t %0 ; set-option -p -t %0 @typed $number"
}

read_noted() {
    query "display-message -p -t %0 '#{@typed}'" && noted_number=${answer[0]:-0}
}

# What was there before the keys, for another process that may have to finish this step: which command they are of, the
# prompt's mark, how the step's earlier waits ended, and the runtimes.
note_typing() {
    local pid before=''
    for pid in "${!runtimes[@]}"; do before+="$pid:${runtimes[pid]} "; done
    printf '%s %s %s\n%s\n' "$number" "$typed" "$waits" "$before" >"$dir/typed"
}

# Sets noted_for, noted_mark, noted_waits and noted_runtimes; the policy may have written anything there.
read_note() {
    local ends
    { read -r noted_for noted_mark ends && read -ra noted_runtimes; } <"$dir/typed"
    [[ $noted_for =~ ^[1-9][0-9]{0,14}$ ]] || noted_for=0
    IFS=, read -ra noted_waits <<<"${ends#,}"
}

# True where the process that began this step had already gone on to a later command.
was_waited_for() {
    ((number < noted_for)) && { [ "$1" = none ] || ((number <= noted_number)); } || return
    why=${noted_waits[number - begun]}
    case $why in prompt | fullscreen | tty_read | idle) ;; *) why=deadline ;; esac
}

recall_typing() {
    local pair
    typed=$noted_mark
    for pair in "${noted_runtimes[@]}"; do
        [[ $pair =~ ^([1-9][0-9]*):([0-9]+)$ ]] && runtimes[BASH_REMATCH[1]]=${BASH_REMATCH[2]}
    done
}

run_command() {
    local idle=
    history=
    editing='' types_ahead='' can_settle=''
    read_mark
    read_stat "$shell"
    runtimes=()
    was_waited_for "$2" && return
    if [ "$2" = none ]; then
        read -r _ typed _ <"$dir/typed"
        if [ "$mark" != "$typed" ] && [ "$group" = "$terminal_group" ]; then
            idle=1
        elif [ "$group" = "$terminal_group" ] && reads_terminal "$shell"; then
            idle=1
        fi
    elif ((number <= noted_number)); then
        recall_typing
        types_ahead=1
    else
        case "$2 $3" in
            hex*0d* | hex*03* | hex*04* | hex*1a* | base64* | file* | 'keys C-'* | 'keys Enter') ;;
            # Keys that tmux reads by itself: line feeds and controls, C-…, ^… and Enter.
            text*0[34ad]* | text*1a* | 'text 43,2d'* | 'text 5e'* | 'text 45,6e,74,65,72') ;;
            *) [ "$group" = "$terminal_group" ] && editing=1 ;;
        esac
        case "$2 $3" in hex*13* | 'keys C-s' | text*13* | 'text 43,2d,73' | base64* | file*) can_drain='' ;; esac
        case "$2 $3" in hex*0d,* | text*0[ad],* | base64* | file*) types_ahead=1 ;; esac
        [ "$2" = keys ] || [ "$group" = "$terminal_group" ] || types_ahead=1
        # What begins with an escape may go on: many a program waits a moment for more of it.
        case "$2 $3" in 'keys Escape' | *1b | 'text 45,73,63,61,70,65' | base64* | file*) ;; *) can_settle=1 ;; esac
        note_runtimes
        typed=$mark
        note_typing
        type_keys "$2" "$3" || { why=ended && return; }
    fi
    if [[ $1 == =* ]]; then
        wait_exactly "${1#=}"
    elif [ -n "$idle" ]; then
        wait_until_done "${1#*/}" idle
    else
        wait_until_done "${1%/*}" ''
    fi
}

# Typing.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Types the keys, and in the same request has tmux note the command's number, so that nothing is typed twice, with the
# data that another process needs to finish this step: the reasons of its earlier waits, the runtimes, and the last mark.
type_keys() {
    local keys pid before=''
    case $1 in
        keys) if [[ $2 == *"'"* ]]; then keys="send-keys -t %0 \"$2\""; else keys="send-keys -t %0 '$2'"; fi ;;
        hex*)
            keys="send-keys -t %0 -H ${2//,/ }"
            [[ $keys == *' 0a'* ]] && choose "${keys// 0a/ 0d}" "$keys"
            ;;
        text) keys="send-keys -t %0 -- $(quote "$2")" ;;
        base64*) paste_keys < <(printf %s "$2") ;;
        # The file is cut if the disk was full.
        file*) (($(wc -c <"$dir/$2") == ${2#*.})) && paste_keys <"$dir/$2" && rm -f "$dir/$2" ;;
    esac
    [ -n "$keys" ] || return
    for pid in "${!runtimes[@]}"; do before+="$pid:${runtimes[pid]} "; done
    type_once "$keys" "$before" || { read_note && ((noted_number >= number)); } || type_once "$keys" "$before"
}

type_once() {
    news=''
    local path
    ask_raw "display-message -p -t %0 '|#{pane_path}'" "set-option -p -F -t %0 @typed '$number $waits|$2|#{pane_path}'" "$1" &&
        [[ $reply != *$'\n%error '* ]] || return
    path=${reply#*$'\n|'}
    take_mark "${path%%$'\n'*}"
    typed=$mark
}

# After the first line's end a program may read the input instead of the line editor: both accept line feeds. In a
# full-screen program only a carriage return is Enter. Sets keys to a command that does $1 there and $2 elsewhere.
choose() { keys="if-shell -F -t %0 '#{alternate_on}' '$1' '$2'"; }

# Prints text, given in hex, as one word of tmux's language.
quote() {
    local text
    printf -v text %b "\\x${1//,/\\x}"
    text=${text//\'/"'\\''"}
    printf "'%s'" "${text//$'\n'/"'\"\\n\"'"}"
}

# Has tmux paste standard input, which is base64. No file is used: the disk may be full.
paste_keys() {
    local flags=
    # Without -S, newer versions show control characters instead of pasting them.
    query 'list-commands paste-buffer' || return
    [[ ${answer[0]} =~ \[-[a-zA-Z]*S ]] && flags=S
    (set -o pipefail && base64 -d | "$tmux" -S "$dir/socket" load-buffer -b keys -) || return
    choose "paste-buffer -d$flags -b keys -t %0" "paste-buffer -dr$flags -b keys -t %0"
}

# Reads the data noted with the keys: sets noted_number, noted_waits, noted_runtimes, noted_path. The policy may have
# changed them.
read_note() {
    local note before words
    noted_number=0 noted_waits=() noted_runtimes=()
    query "display-message -p -t %0 '#{@typed}'" || return
    note=${answer[0]%%|*} before=${answer[0]#*|}
    [[ ${note%% *} =~ ^[1-9][0-9]{0,14}$ ]] || return
    noted_number=${note%% *} note=${note#* }
    split , "${note#,}"
    noted_waits=("${words[@]}")
    split ' ' "${before%%|*}"
    noted_runtimes=("${words[@]}")
    noted_path=${before#*|}
    return 0
}

# True if the process that began this step had already gone on to a later command.
was_waited_for() {
    ((number < noted_number)) || return
    why=${noted_waits[number - begun]}
    case ${why%!} in prompt | fullscreen | tty_read | idle) ;; *) why=deadline ;; esac
}

recall_typing() {
    local pair
    take_mark "$noted_path"
    typed=$mark news=1
    for pair in "${noted_runtimes[@]}"; do
        [[ $pair =~ ^([1-9][0-9]*):([0-9]+)$ ]] && runtimes[BASH_REMATCH[1]]=${BASH_REMATCH[2]}
    done
}

# Sets the properties of the keys that matter for the wait:
#   keys_end_line  they end a line, or interrupt       types_ahead  there is more after a line's end
#   can_settle     they are complete by themselves     needs_run    a process must run before they are answered
note_keys() {
    keys_end_line='' types_ahead='' can_settle='' needs_run=1 untyped='' screen_before='' prompt_before='' statement_before=''
    case "$1 $2" in
        hex*0[ad]* | hex*03* | hex*04* | base64* | file* | 'keys C-'[cdjm] | 'keys Enter') keys_end_line=1 ;;
        # Keys that tmux reads by itself: line feeds and controls, C-…, ^… and Enter.
        text*0[34ad]* | 'text 43,2d'* | 'text 5e'* | 'text 45,6e,74,65,72') keys_end_line=1 ;;
        # C-z and C-\ have no effect if no process can be stopped by them.
        hex*1[ac] | 'keys C-'[z\\]) needs_run='' ;;
    esac
    case "$1 $2" in hex*0[ad],* | text*0[ad],* | base64* | file*) types_ahead=1 ;; esac
    # Keys that end with an escape may be incomplete: many programs wait a moment for more.
    case "$1 $2" in 'keys Escape' | *1b | 'text 45,73,63,61,70,65' | base64* | file*) ;; *) can_settle=1 ;; esac
}

# Sets the terminal right that a killed program left in its own modes, if dash reads it, which sets none itself.
repair_modes() {
    [[ $proc/$foreground/exe -ef /bin/dash || $proc/$foreground/exe -ef /usr/bin/dash ]] && read_modes || return
    [[ $modes != *-icanon* && $modes != *-icrnl* ]] || stty -F "$tty" sane
}

# True if a full-screen program has the terminal, not a shell in a screen that a killed one left.
is_in_screen() {
    local name=''
    [ "$is_full" = 1 ] || return
    read -r name <"$proc/$foreground/comm"
    [[ $name != @(bash|sh|dash|ash|zsh|fish|ksh|mksh) ]] || { read_syscall "$foreground" && [[ $sys_wait == *" $call "* ]]; }
}

run_command() {
    idle=''
    note_keys "$2" "$3"
    was_waited_for && return
    news=1 runtimes=()
    if [[ $2 == none ]]; then
        read_mark
        typed=$mark
        # A shell that runs a loop is in the foreground between the loop's commands.
        if { [ "$kind" != r ] && at_shell; } || { examine '' && [ "$foreground" = "$shell" ] && [ -z "$is_hidden" ]; }; then idle=1; fi
    elif ((number <= noted_number)); then
        recall_typing
        types_ahead=1
    else
        note_runtimes
        repair_modes
        # What a terminal in line mode has no room for is lost.
        [[ $2 != *-long ]] || { read_modes && [[ $modes != *-icanon* ]] && is_cut=!; }
        if [[ $foreground != "$shell" ]]; then
            # Between line ends the terminal itself echoes for a program that reads lines.
            if [ -n "$keys_end_line" ]; then
                needs_run=1
                # If the pane's own shell is not the reader, a returning prompt shows that the reader wants the next line.
                read_screen && read_prompt && screen_before=$screen prompt_before=$prompt statement_before=$statement
                # The text of a tool's command would be taken for keys; one character is meant as one.
                if [[ $2 == *-tool* ]] && ((${#3} > 5)) && is_in_screen; then
                    why=screen
                    return
                fi
            elif is_raw; then
                needs_run=1
            else
                read_screen
                needs_run='' untyped=$screen
            fi
        fi
        [[ $2 == keys || $foreground == "$shell" || -z $keys_end_line ]] || types_ahead=1
        type_keys "$2" "$3" || {
            why=ended
            read_mark && [ "$is_dead" = 0 ] && why=untyped
            return
        }
    fi
    [[ -z $is_last || -n $types_ahead ]] || may_capture=1
    if [[ $1 == =* ]]; then
        wait_exactly "${1#=}"
    elif [[ -n $idle ]]; then
        wait_until_done "${1#*/}" idle
    else
        wait_until_done "${1%/*}" ''
    fi
}

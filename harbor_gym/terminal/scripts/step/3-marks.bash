# What the pane shows, and the marks of its prompts (see rc.bash).
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Sets mark and kind from tmux's path of the pane, $1. Any program may have written it.
take_mark() {
    # A step takes the same one twice.
    [[ $1 == "$taken" ]] || parse_mark "$1"
    mark=$taken_mark kind=$taken_kind
    [[ -n $kind ]]
}

# A regular expression takes four times as long.
parse_mark() {
    local IFS=' ' path=$1
    taken=$1 taken_mark=0:0: taken_kind=''
    [[ $path == "$session "[1-9]* && ${path#"$session "} != *[!0-9pmr\ ]* ]] || return
    # shellcheck disable=SC2086
    set -- ${path#"$session "}
    [[ "$session $*" == "$path" && $3 == [pmr] && $1$2$4$5 != *[!0-9]* ]] || return
    (($# <= 5 && ${#1} <= 10 && ${#2} <= 18 && ${#4} <= 3 && ${#5} <= 18)) || return
    taken_kind=$3 taken_mark=$1:$2:$4${5:+:$5}
}

# True if the mark is later than the one before the keys: each shell counts up.
is_new_mark() {
    local count=${typed#*:} new=${mark#*:}
    [[ -n $kind && $mark != "$typed" ]] && { [[ ${mark%%:*} != "${typed%%:*}" ]] || ((10#${new%%:*} > 10#${count%%:*})); }
}

at_new_prompt() { [[ $kind == [pm] ]] && is_new_mark; }

tell_mark="display-message -p -t %0 '|#{pane_dead} #{alternate_on} #{cursor_x} #{cursor_y} #{history_size} #{cursor_flag}|#{pane_path}'"

# Asks for the mark, and for the other commands that are given.
read_mark() { query_raw "$tell_mark" "$@" && take_reply_mark; }

# Sets state_line, is_dead and is_full, and mark, from tmux's reply to a request that begins with $tell_mark.
take_reply_mark() {
    local line=${reply#*$'\n|'}
    [[ ${#line} != "${#reply}" ]] || return
    state_line=${line%%|*} is_dead=${line:0:1} is_full=${line:2:1}
    line=${line#*|}
    take_mark "${line%%$'\n'*}"
}

# Sets screen to the pane's state and text, and mark at the same moment. Where the screen is captured instead, nobody needs
# its text.
read_screen() {
    ask_or_capture 'capture-pane -p -t %0'
    [[ $is_captured != 1 ]] || return 0
    take_answer "$reply"
    if ((${#answer[@]} > 1)); then
        screen=$state_line$'\n'${answer[1]:-${answer[2]}}
    else
        # The server is gone, or the pane.
        is_dead=1 is_full=0 screen='' kind='' mark=0:0:
    fi
}

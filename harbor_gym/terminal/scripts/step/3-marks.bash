# What the pane shows, and the marks of its prompts (see rc.bash).
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Sets mark and kind from tmux's path of the pane, $1. Any program may have written it.
# A regular expression takes four times as long.
take_mark() {
    local IFS=' ' path=$1
    mark=0:0: kind=''
    [[ $path == "$session "[1-9]* && ${path#"$session "} != *[!0-9pmr\ ]* ]] || return
    # shellcheck disable=SC2086
    set -- ${path#"$session "}
    [[ "$session $*" == "$path" && $3 == [pmr] && $1$2$4$5 != *[!0-9]* ]] || return
    (($# <= 5 && ${#1} <= 10 && ${#2} <= 18 && ${#4} <= 3 && ${#5} <= 18)) || return
    kind=$3 mark=$1:$2:$4${5:+:$5}
}

# True if the mark is later than the one before the keys: each shell counts up.
is_new_mark() {
    local count=${typed#*:} new=${mark#*:}
    [[ -n $kind && $mark != "$typed" ]] && { [[ ${mark%%:*} != "${typed%%:*}" ]] || ((10#${new%%:*} > 10#${count%%:*})); }
}

at_new_prompt() { [[ $kind == [pm] ]] && is_new_mark; }

read_mark() {
    local line
    query_raw "display-message -p -t %0 '|#{pane_dead} #{alternate_on}|#{pane_path}'" || return
    line=${reply#*$'\n|'}
    [[ ${#line} != "${#reply}" ]] || return
    is_dead=${line:0:1} is_full=${line:2:1}
    line=${line#*|}
    take_mark "${line%%$'\n'*}"
}

# Sets screen to the pane's state and text, and mark at the same moment.
read_screen() {
    query "display-message -p -t %0 '#{pane_dead} #{alternate_on} #{cursor_x} #{cursor_y} #{history_size}|#{pane_path}'" \
        'capture-pane -p -t %0'
    if ((${#answer[@]} == 2)); then
        is_dead=${answer[0]:0:1} is_full=${answer[0]:2:1}
        screen=${answer[0]%%|*}$'\n'${answer[1]}
        take_mark "${answer[0]#*|}"
    else
        # The server is gone, or the pane.
        is_dead=1 is_full=0 screen='' kind='' mark=0:0:
    fi
}

# Answering with the screen.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

tell='display-message -p -t %0 "#{@frame}"'
save="list-buffers -F \"#{buffer_name} #{buffer_size}\" ; save-buffer -b text $dir/text ; save-buffer -b visible $dir/visible"

# Sets capture to the commands that capture screen and mark, which stay in tmux, so that they can be read again if this answer
# is lost; $1 is how the waits have ended. tmux pauses to save a buffer, and the further commands of a client that exits then
# are lost: what saves the buffers is a line of its own after that, in the same request.
set_capture() {
    local pane="$nonce pane #{pane_dead} #{pane_dead_status} #{pane_dead_signal} . #{alternate_on} #{cursor_y} #{history_size} #{pane_height}"
    capture="set-option -p -F -t %0 @frame \"$nonce step $1|$pane|#{pane_path}\" ; $tell ; if-shell -F -t %0 \"#{alternate_on}\" \
\"capture-pane -b text -t %0 ; capture-pane -b visible -t %0\" \
\"capture-pane -b text -J -S - -t %0 ; clear-history -t %0 ; capture-pane -b visible -J -t %0\""
}

# Asks for the mark, and for $1 if it is given. Where an answer is due at the next prompt and that is there, the screen is
# captured in the same request instead: sets is_captured. The pattern in it is less strict than `at_new_prompt`.
ask_or_capture() {
    local capture is_prompt count=${typed#*:}
    if [[ -n $may_capture ]]; then
        is_prompt="#{?#{m:$session ${typed%%:*} ${count%%:*} *,#{pane_path}},,#{m:$session * p *,#{pane_path}}}"
        set_capture "$waits,prompt$is_cut"
        if ask_raw "$tell_mark" "if-shell -F -t %0 '#{?pane_dead,,$is_prompt}' '$capture'${1:+" '$1'"}"$'\n'"if-shell -F -t %0 '#{m:$nonce *,#{@frame}}' '$save'"; then
            take_reply_mark || return
            if [[ $kind == p ]] && is_new_mark; then is_captured=1; fi
            return 0
        fi
        # The answer is lost; tmux has the screen where it was captured.
        may_capture='' is_captured=maybe
    fi
    read_mark ${1:+"$1"}
}

show_screen() {
    local capture turn
    if [[ -n $is_captured ]] && { show_reply || show_again; }; then return; fi
    set_capture "${waits:-,}"
    for turn in 1 2; do
        ask_raw "$capture"$'\n'"$save"
        show_reply || show_again && return
    done
    find_remains
    printf '%s step %s 0:0:\n%s gone %s\n' "$nonce" "${waits:-,}" "$nonce" "$remains"
}

# Sets remains to a list of what is left of a session without a screen, for the log.
find_remains() {
    remains=''
    [ -x "$tmux" ] && remains+='tmux '
    [ -e "$dir/socket" ] && remains+='socket '
    [ -d "/proc/$server" ] && remains+='server '
    read_stat "$shell" && remains+='shell '
    [ -n "$to" ] && remains+='client '
    remains="left of it: ${remains:-nothing}"
}

# Prints the answer that tmux keeps; false if it is not of this step.
show_again() {
    query_raw "$tell" "$save"
    show_reply
}

# The same where tmux has printed it already, in reply to the commands in save.
show_reply() {
    local begin frame lines part bytes size source text visible
    # If a buffer could not be saved, the rest is still an answer.
    lines=${reply#*$'\n'"$nonce step "}
    [[ ${#lines} != "${#reply}" ]] || return
    begin="$nonce step ${lines%%|*}" frame=${lines#*|} frame=${frame%%$'\n'*}
    take_mark "${frame#*|}"
    frame=${frame%%|*}
    hold_answer && return
    find_source text "$lines" || return
    text=("${source[@]}") visible=() size=$((${#frame} + 1 + bytes))
    if [[ ${frame#* . } != 1* ]]; then
        find_source visible "$lines" || return
        visible=("${source[@]}") size=$((size + ${#nonce} + 9 + bytes))
    fi
    printf '%s %s\n' "$begin" "$mark"
    if ((size <= 2 * limit)); then
        show_frame
        return 0
    fi
    IFS=' ' read -r lines size < <(show_trimmed | wc -lc)
    if ((size <= 2 * limit)); then
        show_trimmed
    else
        show_trimmed | head -c "$limit"
        printf '\n%s cut %s %s\n' "$nonce" "$lines" "$size"
        show_trimmed | tail -c "$limit"
    fi
    return 0
}

# Spaces at a line's end are no part of an observation, and before 3.3 tmux fills many lines up with them.
show_trimmed() {
    show_frame | LC_ALL=C sed 's/ *$//'
}

# Where both texts are short and saved, as they mostly are, all is one text that is printed at once: every piece wakes up
# who reads it.
hold_answer() {
    local whole="$begin $mark"$'\n'"$frame"$'\n'
    read_saved text || return
    whole+=$part
    if [[ ${frame#* . } != 1* ]]; then
        read_saved visible || return
        whole+="$nonce visible"$'\n'$part
    fi
    ((${#whole} - ${#begin} - ${#mark} - 2 <= 2 * limit)) && held=$whole
}

# Sets part to the saved content of tmux's buffer $1; false if it is long, as bash is slow then, or not whole: the disk may
# be full.
read_saved() {
    part=''
    IFS= read -rN 32001 part <"$dir/$1"
    ((${#part} <= 32000)) && [[ $lines$'\n' == *$'\n'"$1 ${#part}"$'\n'* ]]
}

# Sets source to a command that prints tmux's buffer $1, and bytes to its size in the list of buffers $2. The saved file is
# the fastest source, unless the disk was full, which tmux does not report.
find_source() {
    [[ $'\n'$2$'\n' =~ $'\n'"$1 "([0-9]+)$'\n' ]] || return
    bytes=${BASH_REMATCH[1]} source=(print_buffer "$1")
    (($(wc -c <"$dir/$1") == bytes)) && source=(cat "$dir/$1")
    return 0
}

print_buffer() {
    if [ -x "$tmux" ] && [ -e "$dir/socket" ]; then
        "$tmux" -u -S "$dir/socket" show-buffer -b "$1"
    elif ask "show-buffer -b $1"; then
        # Slower: bash reads a pipe byte by byte.
        printf '%s\n' "${answer[0]%$'\n'}"
    fi
}

show_frame() {
    printf '%s\n' "$frame"
    "${text[@]}"
    if ((${#visible[@]})); then
        printf '%s visible\n' "$nonce"
        "${visible[@]}"
    fi
}

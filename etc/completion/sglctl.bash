# bash completion of sglctl; written by `sglctl completion bash`
_sglctl() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
    local verb='' words='' names='' at
    COMPREPLY=()
    # bash breaks words at colons: a group's name comes in three
    if [[ $previous == g && $current == : ]]; then
        current=g:
    elif [[ $previous == : && ${COMP_WORDS[COMP_CWORD-2]} == g ]]; then
        current=g:$current
    fi
    for ((at = 1; at < COMP_CWORD; at++)); do
        case ${COMP_WORDS[at]} in
            -s|--socket|-H) ((at++)) ;;
            -*) ;;
            *) verb=${COMP_WORDS[at]}; break ;;
        esac
    done
    if [[ $previous == -s || $previous == --socket || $previous == -o || $previous == --output ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
    fi
    case $verb in
        '') words='-s -H -h --version status watch start stop drain restart rolling routers signal pause resume wait why timeline deadlines bundle events tail maintail fg clear avail reread update reload add remove gpus gpu pid version upgrade shutdown connect completion help' ;;
        status) words='-h --help --check --json' names=1 ;;
        watch) words='-h --help --interval --count' names=1 ;;
        start) words='-h --help --force --wait --timeout' names=1 ;;
        stop) words='-h --help --no-wait --timeout' names=1 ;;
        drain) words='-h --help --no-wait --grace --timeout' names=1 ;;
        restart) words='-h --help --reason --wait --timeout --rolling --grace --no-wait' names=1 ;;
        rolling) words='-h --help --cancel -f --follow --json' ;;
        routers) words='-h --help --json' ;;
        signal) words='-h --help' names=1 ;;
        pause) words='-h --help' names=1 ;;
        resume) words='-h --help' names=1 ;;
        wait) words='-h --help --for --timeout --json' names=1 ;;
        why) words='-h --help --json --attempt' names=1 ;;
        timeline) words='-h --help --json --attempt' names=1 ;;
        deadlines) words='-h --help --json --all' names=1 ;;
        bundle) words='-h --help --json --attempt -l --list -o --output' names=1 ;;
        events) words='-h --help -f --follow --since -n --limit --json' names=1 ;;
        tail) words='-h --help --attempt -f --follow -n --lines --bytes --rank --raw stdout stderr' names=1 ;;
        maintail) words='-h --help -f --follow -n --lines --bytes --rank --raw' ;;
        fg) words='-h --help' names=1 ;;
        clear) words='-h --help' names=1 ;;
        avail) words='-h --help --json' ;;
        reread) words='-h --help --json' ;;
        update) words='-h --help --live --rolling --grace --no-wait' names=1 ;;
        reload) words='-h --help --live' ;;
        add) words='-h --help' names=1 ;;
        remove) words='-h --help' names=1 ;;
        gpus) words='-h --help --json' ;;
        gpu) words='-h --help release' ;;
        pid) words='-h --help --json' names=1 ;;
        version) words='-h --help --json' ;;
        upgrade) words='-h --help --timeout' ;;
        shutdown) words='-h --help' ;;
        connect) words='-h --help' ;;
        completion) words='-h --help bash zsh fish names' ;;
        help) words='-h --help status watch start stop drain restart rolling routers signal pause resume wait why timeline deadlines bundle events tail maintail fg clear avail reread update reload add remove gpus gpu pid version upgrade shutdown connect completion help' ;;
    esac
    case $verb:$previous in
        wait:--for) words='healthy stopped' names='' ;;
    esac
    if [[ -n $names && $current != -* ]]; then
        words+=" $("${COMP_WORDS[@]:0:at}" completion names 2>/dev/null)"
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    [[ $current == "${COMP_WORDS[COMP_CWORD]}" ]] || COMPREPLY=("${COMPREPLY[@]#g:}")
}
complete -F _sglctl sglctl

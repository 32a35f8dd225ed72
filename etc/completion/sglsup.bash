# bash completion of sglsup; written by `sglsup completion bash`
_sglsup() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words='' files='' at
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W '-h --help --version daemon run check diagnose runbook replay convert demo completion version' -- "$current")
        return
    fi
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] || continue
        # behind it stands another command's line
        if ((at == COMP_CWORD - 1)); then
            mapfile -t COMPREPLY < <(compgen -c -f -- "$current")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
        fi
        return
    done
    case ${COMP_WORDS[1]}:$previous in
        daemon:-c|daemon:--config) files=1 ;;
        run:--name) words="" ;;
        run:--gpus) words="" ;;
        run:--port) words="" ;;
        run:--state-dir) files=1 ;;
        run:--log-dir) files=1 ;;
        run:--listen) words="" ;;
        run:--grace) words="" ;;
        check:--gpus) words="" ;;
        check:--engine) words="sglang vllm" ;;
        diagnose:--now) words="" ;;
        diagnose:--exit-code) words="" ;;
        diagnose:--engine) words="sglang vllm" ;;
        replay:-c|replay:--config) files=1 ;;
        replay:--server) words="" ;;
        replay:--engine) words="sglang vllm" ;;
        replay:--until|replay:--now) words="" ;;
        demo:--speed) words="" ;;
        daemon:*) words="-h --help -c --config --no-autostart --try" ;;
        run:*) words="-h --help --name --gpus --port --state-dir --log-dir --listen --grace --once --no-restart --" ;;
        check:*) words="-h --help --json --gpus --engine --" files=1 ;;
        diagnose:*) words="-h --help --now --exit-code --engine --json" files=1 ;;
        runbook:*) words="-h --help $("${COMP_WORDS[0]}" runbook 2>/dev/null)" ;;
        replay:*) words="-h --help -c --config --server --engine --until --now --json" files=1 ;;
        convert:*) words="-h --help" files=1 ;;
        demo:*) words="-h --help --serve --keep --speed" ;;
        completion:*) words="-h --help bash zsh fish" ;;
        version:*) words="-h --help" ;;
    esac
    [[ -z $files ]] || compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen ${files:+-f} -W "$words" -- "$current")
}
complete -F _sglsup sglsup

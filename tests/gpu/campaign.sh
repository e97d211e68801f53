#!/usr/bin/env bash
# The campaign of examples/h200 on the machine: detect, plan, apply; on the way the apply is killed and resumed, and the
# engine core of one server is killed. What is seen lies in $home/seen, the records in $home/examples/h200/state.
# usage: campaign.sh HOME_DIR single|wide|rest   (one GPU each side by side, with both engines; both GPUs; what is missing)
set -uo pipefail
home=${1:?} part=${2:?}
cd "$home" || exit
export PATH=$home/bin:$home/python/bin:$PATH HOME=$home/home
recipes=examples/h200/recipes plans=examples/h200/plans state=examples/h200/state seen=$home/seen
mkdir -p "$seen" "$HOME"
title=${VICTIM_TITLE:-VLLM::EngineCore}
log() { echo "$(date -u +%T) $*" | tee -a "$seen/campaign.txt"; }

detect() {
  [ ! -e "$recipes/node.detected" ] || return 0
  lcplan topology detect --name h200 --write "$seen/node.yaml" > "$seen/topology.txt" 2>&1
  lcplan topology detect --json 2> /dev/null | python3 gpu/node.py h200 > "$recipes/node.yaml"
  touch "$recipes/node.detected"
  nvidia-smi topo -m > "$seen/topo.txt" 2>&1
  nvidia-smi --query-gpu=index,uuid,name,driver_version,memory.used,memory.total,pci.bus_id --format=csv > "$seen/smi.csv" 2>&1
}

plan() { # NAME WORDS...
  local name=$1
  shift
  log "plan $name"
  COLUMNS=140 lcplan plan "$recipes" --state "$state" -o "$plans/$name.json" "$@" > "$seen/plan-$name.txt" 2> "$seen/plan-$name.err"
}

apply() { # NAME TRY SECONDS   (at the time limit it stops, still clean)
  log "apply $1, try $2"
  timeout --signal=TERM "$3" "$home/bin/lcplan" apply "$plans/$1.json" --state "$state" --yes --json \
    > "$seen/apply-$1-$2.jsonl" 2> "$seen/apply-$1-$2.err"
  log "apply $1, try $2: exit status $?"
}

kill_after() { # CELLS EVENTS: SIGKILL to the apply once it has measured that many cells
  local found=0
  until [ "$found" -ge "$1" ]; do
    sleep 0.2
    found=$(grep -c '"event": *"cell"' "$2" 2> /dev/null)
    found=${found:-0}
  done
  log "killing the apply after $found cells"
  pgrep -f -- '-m lcplan apply' | xargs -r kill -9
}

detect
case $part in
single)
  plan single --exclude experiment=wide --exclude experiment=experts
  kill_after 2 "$seen/apply-single-1.jsonl" &
  killer=$!
  apply single 1 300
  kill "$killer" 2> /dev/null
  nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv > "$seen/after-kill.csv" 2>&1
  python3 gpu/victim.py "$seen/apply-single-2.jsonl" victim "$title" 8000,8100 > "$seen/victim.txt" 2>&1 &
  victim=$!
  apply single 2 "${LIMIT:-540}"
  kill "$victim" 2> /dev/null
  ;;
wide)
  plan wide --target experiment=wide --target experiment=experts
  apply wide 1 "${LIMIT:-700}"
  ;;
rest)
  plan rest
  apply rest 1 "${LIMIT:-540}"
  ;;
esac
log "audit"
lcplan audit verify --state "$state" > "$seen/verify-$part.txt" 2>&1
lcplan runs list --state "$state" --json > "$seen/runs-$part.json" 2>&1
log "done $part"

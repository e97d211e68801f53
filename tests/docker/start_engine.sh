#!/usr/bin/env bash
# Makes a Docker engine answer on this machine: installs Debian's docker.io where there is none, starts dockerd, waits.
#
# A machine without a GPU still takes `--gpus` requests: dockerd offers them when it finds a program named
# nvidia-container-runtime-hook on its PATH, which runc then runs before a container starts. Ours does nothing.
# Says why and exits with 1 when no engine can be had. Running it again changes nothing.
set -euo pipefail

work=${LCPLAN_DOCKER_WORK:-/tmp/lcplan-docker}
log=$work/dockerd.log
hooks=$work/bin

answers() { [ -S /var/run/docker.sock ] && docker -H unix:///var/run/docker.sock version >/dev/null 2>&1; }
give_up() {
  echo "no Docker engine: $1" >&2
  [ ! -f "$log" ] || tail -n 20 "$log" >&2
  exit 1
}

if answers; then
  echo "a Docker engine answers already"
  exit 0
fi
[ "$(id -u)" = 0 ] || give_up "only root can install and start one"

if ! command -v dockerd >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || give_up "apt-get update failed"
  apt-get install -y -qq --no-install-recommends docker.io tini iptables >/dev/null || give_up "docker.io cannot be installed"
fi
command -v busybox >/dev/null || apt-get install -y -qq --no-install-recommends busybox-static >/dev/null ||
  give_up "busybox-static cannot be installed"

mkdir -p "$hooks"
if ! command -v nvidia-container-runtime-hook >/dev/null; then
  printf '#!/bin/sh\nexit 0\n' >"$hooks/nvidia-container-runtime-hook"
  chmod +x "$hooks/nvidia-container-runtime-hook"
fi

start() { # arguments of dockerd; true when it answers
  rm -f /var/run/docker.pid
  PATH=$hooks:$PATH setsid nohup dockerd "$@" >"$log" 2>&1 </dev/null &
  local pid=$!
  for _ in $(seq 300); do
    answers && return 0
    kill -0 "$pid" 2>/dev/null || return 1
    sleep 0.1
  done
  kill "$pid" 2>/dev/null || true
  return 1
}

# Where the kernel gives a container no packet filter, containers use the host's network only.
start || start --iptables=false --ip6tables=false --bridge=none || give_up "dockerd did not come up"
echo "started dockerd, its log is $log"

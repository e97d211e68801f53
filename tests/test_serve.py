"""Serve entries on the simulator: started, kept, relaunched, stopped, out of the way; drift; what is never touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit import campaign, lcplan, small, start
from tests.test_apply import until

SERVE = "serve: {chat: {stack: s, quad: b}}\n"


@pytest.fixture
def folder(tmp_path: Path, port: int) -> Iterator[Path]:
    """A folder with a small campaign and a serve entry, not planned yet; what it started is ended."""
    write(tmp_path, port)
    yield tmp_path
    lcplan("destroy", "--yes", cwd=tmp_path)


def write(folder: Path, port: int, serve: str = SERVE, **changes: Any) -> None:
    text = small(port, quad="a", **changes).replace("workloads: [w, g]", "workloads: [w]")
    campaign(folder / "recipes", text + serve)


def plan(folder: Path, runtime: str = "sim", *words: str) -> dict[str, Any]:
    chosen = ["--runtime", runtime] if runtime else []
    ran = lcplan("plan", "recipes", *chosen, *words, cwd=folder)
    assert ran.code == 0, ran.err
    return dict(json.loads(lcplan("plan", "recipes", *chosen, *words, "--json", cwd=folder).out))


def apply(folder: Path, *words: str, code: int = 0) -> str:
    ran = lcplan("apply", "--sim-speed", "1000", *words, cwd=folder)
    assert ran.code == code, ran.out + ran.err
    return ran.out


def action(folder: Path, name: str = "chat", runtime: str = "sim") -> tuple[str, str]:
    one = next(one for one in plan(folder, runtime)["serves"] if one["serve"] == name)
    return one["action"], one["reason"]


def kept(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "state/state.json").read_text())["serves"])


def pid(folder: Path, name: str = "chat") -> int:
    return int(kept(folder)[name]["servers"][0]["handle"]["pid"])


def orphans(folder: Path) -> list[dict[str, Any]]:
    """Return the orphans of this campaign."""
    lineage = json.loads(lcplan("state", "show", "--json", cwd=folder).out)["lineage"]
    found = json.loads(lcplan("state", "orphans", "--json", cwd=folder).out)
    return [one for one in found if one["lineage"] == lineage]


def runs(process: int) -> bool:
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def test_an_entry_is_started_kept_and_stopped(folder: Path, port: int) -> None:
    made = plan(folder)
    start = next(one for one in made["operations"] if one["op"] == "serve_start")
    argv = start["argv"]
    assert argv[:2] == ["vllm", "serve"] and argv[argv.index("--served-model-name") + 1] == "chat"
    assert [one["op"] for one in made["operations"] if one["launch"] == "serve/chat"] == ["serve_start", "serve_ready"]
    assert "serve entry chat: ready" in apply(folder)
    server = pid(folder)
    assert runs(server)
    assert (folder / "state/serve/chat/server.log").stat().st_size and (folder / "state/serve/chat/cmd.sh").exists()
    ran = lcplan("plan", "recipes", "--runtime", "sim", cwd=folder)
    assert ran.out.startswith("No changes")
    assert action(folder) == ("=", "runs as recorded")
    apply(folder)
    assert pid(folder) == server and runs(server)
    write(folder, port, serve="")
    assert action(folder) == ("-", "no recipe declares it any more")
    apply(folder)
    assert kept(folder) == {} and not runs(server)
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=folder).out.startswith("No changes")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("max-num-seqs: 64", "max-num-seqs: 32", "args.max-num-seqs: 64 -> 32"),
        ("quad: b}", "quad: b, port: PORT}", "place.port: "),
        ("tp1, context", "tp2, context", "layout: tp1 -> tp2"),
        ("args: {max", "env: {VLLM_LOGGING_LEVEL: DEBUG}, args: {max", "env.VLLM_LOGGING_LEVEL: absent -> DEBUG"),
    ],
)
def test_a_relaunch_names_the_field(folder: Path, port: int, before: str, after: str, reason: str) -> None:
    plan(folder)
    apply(folder)
    old = pid(folder)
    recipe = folder / "recipes/campaign.yaml"
    recipe.write_text(recipe.read_text().replace(before, after.replace("PORT", str(port + 15))))
    shown, why = action(folder)
    assert shown == "-/+" and reason in why
    apply(folder)
    assert not runs(old) and runs(pid(folder)) and action(folder)[0] == "="
    # Rolling back is planning what was there before.
    recipe.write_text(recipe.read_text().replace(after.replace("PORT", str(port + 15)), before))
    assert action(folder)[0] == "-/+"
    apply(folder)
    assert action(folder)[0] == "="


def test_a_comment_relaunches_nothing_and_letters_do_not_either(folder: Path, port: int) -> None:
    plan(folder)
    apply(folder)
    write(folder, port, serve="# the team's own\n" + SERVE.replace(", quad: b", ""))
    assert action(folder) == ("=", "runs as recorded")


def test_a_server_that_is_gone_is_started_again(folder: Path) -> None:
    plan(folder)
    apply(folder)
    os.kill(pid(folder), signal.SIGKILL)
    until(lambda: not runs(pid(folder)))
    made = plan(folder)
    assert made["serves"][0]["drift"] == ["the server is gone"] and made["serves"][0]["action"] == "-/+"
    assert "drift: the server is gone" in lcplan("plan", "recipes", "--runtime", "sim", cwd=folder).out
    apply(folder)
    assert runs(pid(folder)) and action(folder)[0] == "="


def test_a_server_started_by_hand_in_its_place_is_drift(folder: Path) -> None:
    plan(folder)
    apply(folder)
    known = kept(folder)["chat"]
    process = psutil.Process(pid(folder))
    words, env = process.cmdline(), process.environ()
    process.kill()
    until(lambda: not runs(process.pid))
    words[words.index("64")] = "16"
    quiet = subprocess.DEVNULL
    by_hand = subprocess.Popen(words, env=env, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        until(lambda: bool(plan(folder)["serves"][0]["drift"]) and "unhealthy" not in str(plan(folder)["serves"]))
        assert plan(folder)["serves"][0]["drift"] == ["altered by hand: args: 64 -> 16"]
        apply(folder)
        until(lambda: by_hand.poll() is not None)
        assert kept(folder)["chat"]["run"] != known["run"] and action(folder)[0] == "="
    finally:
        by_hand.kill()
        by_hand.wait()


def test_a_server_that_answers_health_while_its_engine_is_dead_is_drift(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lcplan.apply import serve_drift

    monkeypatch.setattr(serve_drift, "_ANSWER_S", 1.0)
    monkeypatch.setenv("LCPLAN_SIM_FAULTS", json.dumps([{"match": "chat", "fault": "hang_engine", "requests": 1}]))
    plan(folder)
    apply(folder)
    monkeypatch.delenv("LCPLAN_SIM_FAULTS")
    shown, why = action(folder)
    assert shown == "-/+" and "unhealthy: it generated no token" in why
    apply(folder)
    assert action(folder)[0] == "="


def test_weights_changed_on_disk_are_drift(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    recipe = folder / "recipes/campaign.yaml"
    recipe.write_text(recipe.read_text().replace("/models/tiny", str(model)))
    plan(folder)
    apply(folder)
    (model / "config.json").write_text('{"a": 1}')
    shown, why = action(folder)
    assert shown == "-/+" and why == "drift: the model on disk changed: config.json"


def test_an_entry_makes_way_and_comes_back(folder: Path, port: int) -> None:
    plan(folder)
    apply(folder)
    old = kept(folder)["chat"]["run"]
    write(folder, port, extra="  second: {stacks: [s], workloads: [g], quad: b, preempt: true, quiet: true}\n")
    made = plan(folder)
    one = made["serves"][0]
    assert one["action"] == "-/+" and "makes way for" in one["reason"] and "started again" in one["reason"]
    order = [one["id"] for one in made["operations"]]
    launch = one["preempted_by"][0]
    by_id = {one["id"]: one for one in made["operations"]}
    assert "serve/chat/serve_stop" in by_id[f"{launch}/resolve"]["after"]
    assert f"{launch}/seal" in by_id["serve/chat/serve_start"]["after"] and order
    told = [json.loads(line) for line in apply(folder, "--json").splitlines()]
    story = [(e["event"], e.get("what") or e.get("op")) for e in told
             if e["event"] == "serve" or (e["event"] == "step" and e["op"] in ("launch", "seal"))]  # fmt: skip
    assert story == [("serve", "stopping"), ("serve", "stopped"), ("step", "launch"), ("step", "seal"),
                     ("serve", "starting"), ("serve", "ready")]  # fmt: skip
    assert kept(folder)["chat"]["run"] != old and action(folder)[0] == "="
    # Applied again it leaves everything as it is.
    again = kept(folder)["chat"]["run"]
    apply(folder)
    assert kept(folder)["chat"]["run"] == again


def test_an_entry_that_does_not_start_is_a_failure_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LCPLAN_SIM_FAULTS", json.dumps([{"match": "chat", "fault": "die_at_start", "class": "oom"}]))
    plan(folder)
    out = apply(folder, code=1)
    assert "serve entry chat: " in out and "memory" in out and "done: 1 cells measured" in out
    assert kept(folder) == {}
    assert action(folder)[0] == "+"
    monkeypatch.delenv("LCPLAN_SIM_FAULTS")
    # The same plan may be applied again and finishes what is missing.
    apply(folder)
    assert runs(pid(folder))


def test_a_rehearsal_of_a_real_plan_leaves_nothing_running(folder: Path) -> None:
    plan(folder, "process")
    out = apply(folder, "--runtime", "sim")
    assert "serve entry chat: ready" in out
    assert kept(folder) == {}
    from lcplan.runtime.process import RUNTIME

    lineage = json.loads((folder / "state/state.json").read_text())["lineage"]
    assert RUNTIME.find(lineage) == []


def test_a_rehearsal_leaves_what_is_served_for_real_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake_vllm(folder)}:{os.environ['PATH']}")
    plan(folder, "process")
    apply(folder)
    server = pid(folder)
    assert action(folder)[0] == "!" and action(folder, runtime="process")[0] == "="
    plan(folder)
    apply(folder)
    assert runs(server)
    recipe = folder / "recipes/campaign.yaml"
    recipe.write_text(recipe.read_text().replace("max-num-seqs: 64", "max-num-seqs: 32"))
    plan(folder, "process")
    assert "left" in apply(folder, "--runtime", "sim") and runs(server)


def test_destroy_ends_entries_and_only_its_own(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from lcplan.apply.demo import free_ports

    other = tmp_path_factory.mktemp("other")
    plan(folder)
    apply(folder)
    write(other, free_ports())
    plan(other)
    apply(other)
    mine, theirs = pid(folder), pid(other)
    try:
        assert orphans(folder) == []
        ran = lcplan("destroy", "--yes", cwd=folder)
        assert ran.code == 0 and "serve__chat__" in ran.out
        assert not runs(mine) and runs(theirs) and kept(folder) == {}
        assert action(folder)[0] == "+"
    finally:
        lcplan("destroy", "--yes", cwd=other)
    assert not runs(theirs)


def test_an_entry_of_another_machine_is_not_looked_at_and_not_ended(folder: Path) -> None:
    plan(folder)
    apply(folder)
    server, path = pid(folder), folder / "state/state.json"
    here = kept(folder)["chat"]["host"]
    path.write_text(path.read_text().replace(f'"host": "{here}"', '"host": "elsewhere"'))
    ran = lcplan("plan", "recipes", "--runtime", "sim", cwd=folder)
    assert ran.out.startswith("No changes") and "serve-not-seen" in ran.err and "elsewhere" in ran.err
    ran = lcplan("destroy", "--yes", cwd=folder)
    assert ran.code == 1 and "serve-elsewhere" in ran.err and runs(server) and "chat" in kept(folder)
    path.write_text(path.read_text().replace('"host": "elsewhere"', f'"host": "{here}"'))


def fake_vllm(folder: Path) -> Path:
    """Return a folder with a `vllm` that is the simulator, as a real engine would be on the PATH."""
    import sys

    from tests.kit import REPO

    bin_ = folder / "bin"
    bin_.mkdir()
    script = bin_ / "vllm"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -m lcplan.sim --speed 1000 -- vllm "$@"\n')
    script.chmod(0o755)
    return bin_


def test_a_damaged_state_still_knows_what_is_served(folder: Path) -> None:
    plan(folder)
    apply(folder)
    server, before = pid(folder), kept(folder)
    path = folder / "state/state.json"
    path.write_text(path.read_text()[:40])
    assert action(folder) == ("=", "runs as recorded")
    assert orphans(folder) == []
    assert lcplan("state", "rebuild", cwd=folder).code == 0
    assert kept(folder) == before and runs(server)
    apply(folder)
    assert runs(server)


def test_orphans_are_listed_and_only_they_are_removed(folder: Path, port: int) -> None:
    from lcplan.apply import orphans as orphans_module
    from lcplan.apply.events import quiet
    from lcplan.runtime.process import RUNTIME

    plan(folder)
    apply(folder)
    lineage, server = kept(folder)["chat"]["lineage"], pid(folder)
    env = psutil.Process(server).environ()
    words = ["sleep", "600"]
    labelled = subprocess.Popen(words, env={**env, "LCPLAN_RUN": "left-behind"}, start_new_session=True)
    other = {**env, "LCPLAN_RUN": "theirs", "LCPLAN_LINEAGE": "of-somebody-else", "LCPLAN_STATE": "node-b:/state"}
    stranger = subprocess.Popen(words, env=other, start_new_session=True)
    plain = subprocess.Popen(words, start_new_session=True)
    try:
        until(lambda: any(one.run == "left-behind" for one in RUNTIME.find(lineage)))
        (mine,) = orphans(folder)
        assert (mine["run"], mine["owner"], mine["removed"]) == ("left-behind", "gone", False)
        # Other campaigns of this machine may have orphans of their own: only ours are removed here.
        found = [one for one in orphans_module.orphans() if one.found.lineage == lineage]
        orphans_module.remove(folder / "state", found, False, quiet)
        until(lambda: labelled.poll() is not None)
        assert stranger.poll() is None and plain.poll() is None and runs(server)
    finally:
        for one in (labelled, stranger, plain):
            one.kill()
            one.wait()


def test_entries_that_change_places_leave_before_they_come(folder: Path, port: int) -> None:
    both = "serve: {chat: {stack: s, quad: %s, port: %d}, code: {stack: s, quad: %s, port: %d}}\n"
    write(folder, port, serve=both % ("a", port + 5, "b", port + 15))
    plan(folder)
    apply(folder)
    old = {name: one["run"] for name, one in kept(folder).items()}
    write(folder, port, serve=both % ("b", port + 15, "a", port + 5))
    made = plan(folder)
    assert {one["serve"]: one["action"] for one in made["serves"]} == {"chat": "-/+", "code": "-/+"}
    by_id = {one["id"]: one for one in made["operations"]}
    assert set(by_id["serve/chat/serve_start"]["after"]) == {"serve/chat/serve_stop", "serve/code/serve_stop"}
    apply(folder)
    assert all(one["run"] != old[name] for name, one in kept(folder).items())
    assert kept(folder)["chat"]["place"]["port"] == port + 15 and action(folder)[0] == "="


def test_an_entry_that_made_way_comes_back_although_the_apply_is_asked_to_stop(folder: Path, port: int) -> None:
    plan(folder)
    apply(folder)
    old = pid(folder)
    write(folder, port, extra="  second: {stacks: [s], workloads: [g], quad: b, preempt: true, quiet: true}\n")
    recipe = folder / "recipes/campaign.yaml"
    recipe.write_text(recipe.read_text().replace("kind: grid, output: 8", "kind: grid, output: 4000"))
    plan(folder)
    process = start("apply", "--json", "--sim-speed", "20", cwd=folder)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "step" and event["op"] == "measure":
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and json.loads(out.splitlines()[-1])["not_run"]
    assert not runs(old) and runs(pid(folder)) and pid(folder) != old
    apply(folder)
    assert plan(folder)["serves"][0]["action"] == "=" and runs(pid(folder))


def test_a_split_layout_is_served_with_all_its_servers(folder: Path, port: int) -> None:
    roles = "roles: {prefill: {layout: tp1, quad: a}, decode: {layout: tp1, quad: b}}"
    text = small(port).split("experiments:")[0].replace("layout: tp1,", f"layout: pd_1p1d, {roles},")
    campaign(folder / "recipes", text + "serve: {chat: {stack: s}}\n")
    plan(folder)
    apply(folder)
    servers = kept(folder)["chat"]["servers"]
    assert [one["role"] for one in servers] == ["prefill", "decode", "router"]
    assert action(folder)[0] == "="
    os.kill(servers[1]["handle"]["pid"], signal.SIGKILL)
    until(lambda: not runs(servers[1]["handle"]["pid"]))
    assert action(folder) == ("-/+", "drift: decode: the server is gone")
    apply(folder)
    assert action(folder)[0] == "="
    pids = [one["handle"]["pid"] for one in kept(folder)["chat"]["servers"]]
    assert lcplan("destroy", "--yes", cwd=folder).code == 0
    assert not any(map(runs, pids))

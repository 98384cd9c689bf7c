"""`--mode=diagnose` and `--mode=tune` measure for a short time: what they print and keep."""

import json
from xml.etree import ElementTree

from tests.commands import CONFIGS, fork_server
from tests.trainers.command_lab import write_task
from trainers.performance.diagnose.times import PARTS


def measured(tmp_path, mode, flag):
    """Returns what the mode printed, and the files that it left in the workdir."""
    short = {"module": "tests.short_measures", "arguments": {"search_seconds": 0.5}}
    done = fork_server().run(flag, f"--mode={mode}", "--workdir=run", cwd=tmp_path, timeout=300, before=short)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout, {path.name: path for path in (tmp_path / "run").iterdir()}


def test_diagnosis_has_each_part_and_a_picture_of_them(tmp_path):
    said, kept = measured(tmp_path, "diagnose", f"--gin_file={CONFIGS / 'digits_linear.gin'}")
    assert kept.keys() == {"diagnosis.json", "diagnosis.svg"}
    found = json.loads(kept["diagnosis.json"].read_text())
    (point,) = found["points"]
    assert (point["replicas"], point["global_batch_size"], point["collectives"]) == (1, 64, [])
    assert point["parts"].keys() == {*PARTS}
    assert found["verdict"]["sentence"] in said
    assert all(x["line"] in said for x in found["tried"])
    picture = ElementTree.parse(kept["diagnosis.svg"])
    titles = [x.text.partition(":")[0] for x in picture.iter() if x.tag.endswith("title")]
    assert {*titles} == {part for part, seconds in point["parts"].items() if seconds}


def test_tuning_tries_settings_and_says_what_it_kept(tmp_path):
    said, kept = measured(tmp_path, "tune", write_task(tmp_path))
    assert kept.keys() == {"tune.json"}
    found = json.loads(kept["tune.json"].read_text())
    assert found["complete"]
    assert found["tried"]
    for row in found["tried"]:
        assert f"`{row['setting']} = {row['value']}`: " in said
        assert row["verdict"] not in ("void", "failed"), row
    assert all(line in said for line in found["lines"])

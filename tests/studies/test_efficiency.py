"""The study of training efficiency compares what it says."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from tmm_adapters.architecture import get_architecture
from tmm_lab.compare.models import equal_models
from tmm_lab.studies import efficiency


@pytest.mark.parametrize("options", [efficiency.QUICK, efficiency.FULL], ids=["quick", "full"])
def test_models_are_of_equal_flops_and_the_authors_pair_of_half_the_width(options):
    arms = efficiency.arms(options)
    models = equal_models(arms, options, 257, "cpu")
    flops = {label: get_architecture(config.model_type).flops_per_token(config) for label, config in models.items()}
    for arm in arms:
        if arm.solved:
            assert flops[arm.label] == pytest.approx(flops["TMM"], rel=0.02)
    wide = models["TMM twice as wide as Hyena"].d_model
    assert wide == pytest.approx(2 * models["Hyena"].d_model, rel=0.02)
    assert not {"llama", "masked-mixer"} & {arm.architecture for arm in arms if arm.decides}, "of quadratic cost"


@pytest.mark.parametrize("equal", ["flops", "seconds"])
def test_the_page_and_the_readme_say_what_was_measured(equal):
    root = Path(__file__).parents[2]
    results = json.loads((root / f"docs/studies/efficiency-{equal}/results.json").read_text())
    _, flops, seconds = (root / "docs/studies/efficiency.md").read_text().split("\n## At equal ")
    table, readme = {"flops": flops, "seconds": seconds}[equal], (root / "README.md").read_text()
    for entry in results["entries"]:
        final = [curve["bits_per_byte"][-1] for curve in entry["curves"]]
        said = f"{statistics.mean(final):.3f}"
        if entry["difference"] is not None:
            difference = "{mean:+.3f} ({low:+.3f} to {high:+.3f})".format(**entry["difference"])
            assert difference in table
        (row,) = [line for line in table.splitlines() if line[2:].split("  ")[0].split(" |")[0] == entry["label"]]
        assert f"{said} ± {statistics.stdev(final):.3f}" in row
        if entry["label"] in ("TMM", *results["decisive"]):
            assert f"{said} (d {entry['config']['d_model']})" in readme
            assert entry["difference"] is None or difference in readme
    assert results["verdict"] == {"flops": "refuted", "seconds": "undecided"}[equal]

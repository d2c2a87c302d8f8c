"""The generated reference of keys."""

import re

from write_config_schema import render_config_reference

from trainyard.config.keys import leaf_keys


def test_every_key_has_its_default_its_values_and_its_meaning() -> None:
    items = re.findall(r"^- (`[^`]+`.*(?:\n  .*)*)", render_config_reference(), flags=re.M)
    rows = {re.split("[`=]", item)[1]: " ".join(item.split()) for item in items}
    assert tuple(rows) == leaf_keys()
    assert rows["training.max_steps"].startswith("`training.max_steps=null`, int>0: ")
    assert rows["training.min_learning_rate_ratio"].startswith(
        "`training.min_learning_rate_ratio=0.1`, number≥0,≤1: "
    )
    assert rows["compute.strategy"].startswith('`compute.strategy="single"`, `single|ddp|fsdp|hsdp`: ')
    assert rows["compute.deterministic"].startswith("`compute.deterministic=true`: ")
    assert rows["model.name"].startswith("`model.name`\\*, text: ")
    assert rows["model.tokenizer"].startswith("`model.tokenizer=null`: ")

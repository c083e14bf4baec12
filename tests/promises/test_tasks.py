"Whole tasks are recipes: in at most twenty lines of the user's own, each checked against an independent number"
import json
import pytest
from nbdev.config import get_config

nbs = get_config().config_path/'nbs'
# Page, and the cells that a user would write. Data, and models that come from elsewhere, are not counted
tasks = dict(
    tabular=('recipes/01_tabular', 'recipe'), bert_in_bf16_with_accumulation=('howto/09_hugging_face', 'recipe'),
    unet=('howto/13_segmentation', 'recipe'), language_model_with_hidden_state=('recipes/04_language_model', 'recipe'),
    vae=('recipes/05_vae', 'recipe'), gan=('recipes/06_gan', 'recipe'),
    siamese=('recipes/07_siamese', 'recipe', 'fit'), multi_task=('recipes/08_multi_task', 'recipe'),
    streams_without_length=('recipes/09_streams', 'recipe'), metric_learning=('recipes/10_metric_learning', 'recipe'),
    k_fold_and_sweep=('howto/14_sweeps', 'recipe'), distillation=('recipes/12_distillation', 'recipe'),
    sam=('tutorials/06_sam', 'SAM'), fgsm=('recipes/13_fgsm', 'recipe'), lora=('howto/06_lora', 'recipe'),
    export=('recipes/15_export', 'recipe'),
    stop_and_resume=('howto/01_resume', 'recipe', 'recipe_resume', 'recipe_died', 'recipe_again'),
    loggers=('howto/11_loggers', 'recipe'))
checks = dict(sam=('test_sam', 'check_sam'))

def code_of(page):
    cells = json.loads((nbs/f'{page}.ipynb').read_text())['cells']
    return {c['id']:''.join(c['source']).splitlines() for c in cells if c['cell_type']=='code'}

@pytest.mark.parametrize('task', tasks)
def test_a_task_takes_at_most_twenty_lines_and_is_checked(task):
    page,*own = tasks[task]
    cells = code_of(page)
    lines = [l for k in own for l in cells[k] if l.strip() and not l.strip().startswith('#')]
    assert 0<len(lines)<=20
    assert any('assert' in l or 'test_' in l for k in checks.get(task, ['check']) for l in cells[k])

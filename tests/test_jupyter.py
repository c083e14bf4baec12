"A fit in JupyterLab, in a real browser: the display, the stop button, `resume`, and what a saved notebook keeps"
import json,os,re,shutil,socket,subprocess,sys,time
from urllib.request import urlopen
import pytest
from nbdev.config import get_config

pytestmark = pytest.mark.slow
root = get_config().config_path
chromium = next(filter(None, map(shutil.which, ('chromium','chromium-browser','google-chrome'))), None)
options = ('--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking '
    '--disable-component-update --disable-sync --window-size=1200,1000').split()

cells = """import time
from torch import nn
from learner.all import *
learn = Learner(synth_dls(20), nn.Linear(1, 1), nn.MSELoss(), lr=.01)
def slow(learn): time.sleep(.02)
learn.add_cb(on(event.after_batch)(slow));
---
learn.fit(12);
---
learn.resume();
---
len(learn.recorder.rows)
""".split('---\n')

def notebook():
    code = [dict(cell_type='code', id=f'c{i}', metadata={}, source=o.strip(), outputs=[], execution_count=None)
        for i,o in enumerate(cells)]
    spec = dict(kernelspec=dict(name='python3', display_name='Python 3', language='python'))
    return dict(cells=code, metadata=spec, nbformat=4, nbformat_minor=5)

def waited(f, seconds=60):
    "What `f` returns, as soon as it is anything"
    end = time.time()+seconds
    while time.time()<end:
        if res := f(): return res
        time.sleep(.1)
    raise TimeoutError(f'nothing within {seconds} seconds')

@pytest.fixture
def lab(tmp_path):
    "The address of a running JupyterLab, in a folder with a notebook and with no settings"
    pytest.importorskip('jupyterlab', reason="needs `pip install -e '.[jupyter]'`")
    (tmp_path/'work').mkdir()
    (tmp_path/'work'/'fit.ipynb').write_text(json.dumps(notebook()))
    folders = 'JUPYTER_CONFIG_DIR','JUPYTER_DATA_DIR','JUPYTER_RUNTIME_DIR','JUPYTERLAB_WORKSPACES_DIR','IPYTHONDIR'
    env = {k:v for k,v in os.environ.items() if k in ('PATH','LANG','OMP_NUM_THREADS')}
    env |= {o:str(tmp_path/o) for o in folders} | dict(HOME=str(tmp_path), PYTHONPATH=str(root))
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    command = [sys.executable, '-m', 'jupyterlab', '--no-browser', '--allow-root', '--IdentityProvider.token=',
        '--ServerApp.ip=127.0.0.1', f'--ServerApp.port={port}', f'--ServerApp.root_dir={tmp_path/"work"}',
        '--LabApp.news_url=None', '--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate']
    with open(tmp_path/'log', 'w') as log: server = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=log)
    def answers():
        assert server.poll() is None, (tmp_path/'log').read_text()[-2000:]
        try: return urlopen(f'http://127.0.0.1:{port}/api').status==200
        except OSError: return False
    try:
        waited(answers)
        yield f'http://127.0.0.1:{port}'
    finally:
        server.terminate()
        server.wait(20)

@pytest.fixture
def browser(tmp_path):
    webdriver = pytest.importorskip('selenium.webdriver')
    driver = shutil.which('chromedriver')
    if not (chromium and driver): pytest.skip('no Chromium with its driver found')
    opts = webdriver.ChromeOptions()
    opts.binary_location = chromium
    for o in (*options, f'--user-data-dir={tmp_path/"profile"}'): opts.add_argument(o)
    with webdriver.Chrome(options=opts, service=webdriver.ChromeService(driver)) as res:
        yield res
        shot(res, 'end')

def shot(browser, name):
    "A screenshot, where the variable SCREENSHOTS names a folder for them"
    if folder := os.environ.get('SCREENSHOTS'): browser.save_screenshot(f'{folder}/{name}.png')

class Page:
    "The notebook in the browser"
    def __init__(self, browser, url):
        self.browser = browser
        browser.get(url)
        waited(lambda: len(self.cells())==len(cells))
        status = 'return document.querySelector(".jp-Notebook-ExecutionIndicator")?.dataset.status'
        waited(lambda: self.js(status)=='idle')
    def js(self, script, *args): return self.browser.execute_script(script, *args)
    def cells(self): return self.browser.find_elements('css selector', '.jp-Notebook .jp-CodeCell')
    def outputs(self, i):
        "Texts of the outputs of a cell"
        script = 'return [...arguments[0].querySelectorAll(".jp-OutputArea-output")].map(o => o.innerText.trim())'
        return [o for o in self.js(script, self.cells()[i]) if o]
    def start(self, i):
        from selenium.webdriver import ActionChains,Keys
        self.cells()[i].find_element('css selector', '.jp-InputArea-editor').click()
        ActionChains(self.browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    def is_done(self, i):
        prompt = self.cells()[i].find_element('css selector', '.jp-InputPrompt')
        return re.fullmatch(r'\[\d+\]:', prompt.text.strip())
    def run(self, i):
        self.start(i)
        waited(lambda: self.is_done(i))
        return self.outputs(i)
    def save(self):
        from selenium.webdriver import ActionChains,Keys
        ActionChains(self.browser).key_down(Keys.CONTROL).send_keys('s').key_up(Keys.CONTROL).perform()

def n_rows(text): return len(re.findall(r'^\s*\d+\s', text, re.M))

def test_a_fit_is_stopped_resumed_and_saved(lab, browser, tmp_path):
    page = Page(browser, f'{lab}/lab/tree/fit.ipynb?reset')
    assert not page.run(0)

    page.start(1)
    first = waited(lambda: page.outputs(1))
    waited(lambda: n_rows(page.outputs(1)[0])>=2)
    assert len(page.outputs(1))==1 and page.outputs(1)!=first # one display, which changes in place
    shot(browser, 'running')
    browser.find_element('css selector', '[data-command="notebook:interrupt-kernel"]').click()
    waited(lambda: page.is_done(1))
    shot(browser, 'stopped')
    stopped = page.outputs(1)
    assert len(stopped)==2 and '\n' not in stopped[1] and 'Traceback' not in stopped[1] and 'resume' in stopped[1]

    resumed, = page.run(2)
    shot(browser, 'resumed')
    assert n_rows(resumed)==12 and page.run(3)==['12']

    kept = [page.outputs(i) for i in range(4)]
    page.save()
    path = tmp_path/'work'/'fit.ipynb'
    waited(lambda: all(o['outputs'] for o in json.loads(path.read_text())['cells'][1:]))
    again = Page(browser, f'{lab}/lab/tree/fit.ipynb?reset')
    shot(browser, 'reloaded')
    assert [again.outputs(i) for i in range(4)]==kept

"The site as a reader has it: built once, then read as files, and in a browser where there is one"
import json,re,shutil,subprocess,sys
from urllib.parse import unquote,urldefrag
import pytest
from nbdev.config import get_config

pytestmark = pytest.mark.slow
root = get_config().config_path

@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "Folder of the built site. The build fails at any warning"
    out = tmp_path_factory.mktemp('site')
    build = [sys.executable, '-m', 'sphinx', '-b', 'html', '-q', '-W', '--keep-going', '-E']
    p = subprocess.run([*build, '-d', out/'doctrees', '-c', 'docs', 'nbs', out/'html'], cwd=root, capture_output=True,
        text=True)
    assert p.returncode==0, p.stderr[-3000:]
    return out/'html'

@pytest.fixture(scope='module')
def pages(site):
    "Each page, parsed, by its path; without the listings of the source"
    from bs4 import BeautifulSoup
    def is_page(o): return '_modules' not in o.parts and o.stem not in ('genindex','py-modindex','search')
    return {o.relative_to(site).as_posix():BeautifulSoup(o.read_text(encoding='utf-8'), 'html.parser')
        for o in sorted(site.rglob('*.html')) if is_page(o)}

@pytest.fixture(scope='module')
def catalogue():
    sys.path.insert(0, str(root/'docs'))
    try: import catalogue
    finally: sys.path.remove(str(root/'docs'))
    return catalogue

def test_links_lead_to_what_exists(site, pages):
    ids = {site/k:{o['id'] for o in page.select('[id]')} for k,page in pages.items()}
    def leads_nowhere(start, href):
        path,anchor = urldefrag(href)
        if re.match(r'\w+:', path): return False
        end = (start.parent/unquote(path)).resolve() if path else start
        return not end.exists() or anchor and end in ids and unquote(anchor) not in ids[end]
    assert len(pages)>150
    assert not [f'{k}: {a["href"]}' for k,page in pages.items() for a in page.select('a[href]')
        if leads_nowhere(site/k, a['href'])]

def test_links_from_the_source_lead_to_entries(site, pages):
    "Beside each definition in a listing of the source stands a link to its entry"
    ids = {site/k:{o['id'] for o in page.select('[id]')} for k,page in pages.items()}
    found = [(fn, *urldefrag(href)) for fn in sorted(site.glob('_modules/**/*.html'))
        for href in re.findall(r'class="viewcode-back" href="([^"]+)"', fn.read_text(encoding='utf-8'))]
    assert len(found)>500
    assert not [f'{fn.stem}: {path}#{anchor}' for fn,path,anchor in found
        if unquote(anchor) not in ids[(fn.parent/unquote(path)).resolve()]]

def test_every_public_name_and_every_method_has_an_entry(site, pages, catalogue):
    ids = {o['id'] for page in pages.values() for o in page.select('dt[id], td[id]')}
    from learner.all import event
    import learner.all
    assert not {catalogue.target(o) for o in (*learner.all.__all__, *catalogue.methods(), *event)} - {
        *ids, *(f'learner.core.events.{o}' for o in ids)}

def test_names_in_backticks_lead_to_their_entries(pages, catalogue):
    "A name links to its entry, unless it stands there"
    def is_own(code):
        entry = code.find_parent('dl', class_='py')
        return entry and re.search(rf'\b{re.escape(code.get_text())}\b', entry.find('dt').get_text())
    found = [(k, o.get_text()) for k,page in pages.items() for o in page.select('article code.literal')
        if catalogue.target(o.get_text()) and not (o.find_parent('a') or o.find_parent('dt') or is_own(o))]
    assert not found, f'{len(found)}: {found[:10]}'

def test_tables_of_parameters_have_no_gaps(pages):
    "The last column of a table of parameters says what each is"
    rows = [(k, row) for k,page in pages.items() for row in page.select('table.params tbody tr')]
    assert len(rows)>500
    gaps = [f'{k}: {cells[0].get_text()}' for k,row in rows if not (cells := row.select('td'))[-1].get_text().strip()
        and 'Returns' not in cells[0].get_text()]
    assert not gaps, gaps[:20]

def test_pages_describe_themselves(site, pages):
    "Each page has a title, a description and an icon"
    for k,page in pages.items():
        assert page.title.get_text() and page.select_one('link[rel~=icon]'), k
        assert len(page.select_one('meta[name=description]')['content'])>15, k

def test_pictures_have_words(pages):
    assert not [f'{k}: {o["src"]}' for k,page in pages.items() for o in page.select('article img')
        if re.fullmatch(r'(?:.*/)?[0-9a-f]{20,}\.\w+|', o.get('alt', ''))]

def test_the_map_is_in_the_side_bar(pages):
    tree = pages['index.html'].select('.sidebar-tree > ul > li > a')
    assert [o.get_text() for o in tree]==['Get started', 'Tutorials', 'How-to', 'Concepts', 'Reference',
        'Coming from …', 'Performance', 'How it is built', 'Project']
    assert [o['href'].split('/')[0] for o in pages['index.html'].select('.doors a')]==['start', 'tutorials', 'howto',
        'concepts', 'reference', 'migration']

def test_tutorials_show_no_tests(pages):
    found = [(k, line) for k,page in pages.items() if k.startswith('tutorials/') for o in page.select('.cell_input pre')
        for line in o.get_text().splitlines() if line.startswith(('assert ','test_'))]
    assert not found, found[:5]

def test_text_for_language_models_is_there(site):
    assert (site/'llms.txt').stat().st_size>10_000 and (site/'llms-full.txt').stat().st_size>100_000

# In a browser
chromium = next(filter(None, map(shutil.which, ('chromium','chromium-browser','google-chrome'))), None)
options = ('--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking '
    '--disable-component-update --disable-sync --allow-file-access-from-files --hide-scrollbars').split()

@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    "Chromium, which keeps a log of its console and of what it asks the network for"
    webdriver = pytest.importorskip('selenium.webdriver')
    driver = shutil.which('chromedriver')
    if not (chromium and driver): pytest.skip('no Chromium with its driver found')
    opts = webdriver.ChromeOptions()
    opts.binary_location = chromium
    for o in (*options, f'--user-data-dir={tmp_path_factory.mktemp("profile")}'): opts.add_argument(o)
    opts.set_capability('goog:loggingPrefs', dict(browser='ALL', performance='ALL'))
    with webdriver.Chrome(options=opts, service=webdriver.ChromeService(driver)) as res: yield res

def resize(browser, width):
    browser.execute_cdp_cmd('Emulation.setDeviceMetricsOverride',
        dict(width=width, height=900, deviceScaleFactor=1, mobile=width<600))

def everywhere(site, pages, browser, width, script):
    "What `script` returns on each page that is `width` pixels wide, where it is anything"
    resize(browser, width)
    res = {}
    for k in pages:
        browser.get((site/k).as_uri())
        if found := browser.execute_script(script): res[k] = found
    return res

wider = 'o => o.clientWidth && o.scrollWidth > o.clientWidth+1'
sideways = f'''const blocks = 'article, article section, article p, article li, article dd, article h1, .content';
const page = document.documentElement, inline = o => getComputedStyle(o).display=='inline';
if (page.scrollWidth > innerWidth) return 'the page: ' + page.scrollWidth;
return [...document.querySelectorAll(blocks)].filter(o => !inline(o)).filter({wider}).map(o => o.tagName).join(' ')'''

def test_at_1280_pixels_nothing_is_cut_off(site, pages, browser):
    "No block of code is wider than its place, nothing scrolls sideways, and the contents of the page are in sight"
    cut = f"return [...document.querySelectorAll('article pre')].filter({wider}).map(o => o.textContent.slice(0, 80))"
    assert not everywhere(site, pages, browser, 1280, cut)
    assert not everywhere(site, pages, browser, 1280, sideways)
    left = """const x = o => o.getBoundingClientRect().left;
        const out = o => [...o.children].some(c => c.getClientRects().length && x(c) < x(o)-1);
        return [...document.querySelectorAll('dl.py > dt.sig')].filter(out).map(o => o.id).join(' ')"""
    assert not everywhere(site, pages, browser, 1280, left)
    hidden = """const toc = document.querySelector('.toc-tree'), o = toc && toc.getBoundingClientRect()
        return toc && (o.left<0 || o.right>innerWidth)"""
    assert not everywhere(site, pages, browser, 1280, hidden)

def test_on_a_phone_no_page_scrolls_sideways(site, pages, browser):
    assert not everywhere(site, pages, browser, 390, sideways)

def test_pages_load_without_errors_and_ask_no_other_host(site, pages, browser):
    resize(browser, 1280)
    for log in ('browser','performance'): browser.get_log(log)
    for k in pages: browser.get((site/k).as_uri())
    assert not [o['message'] for o in browser.get_log('browser') if o['level']=='SEVERE']
    sent = [json.loads(o['message'])['message'] for o in browser.get_log('performance')]
    asked = {o['params']['request']['url'] for o in sent if o['method']=='Network.requestWillBeSent'}
    assert len(asked)>len(pages) and not [o for o in asked if o.startswith(('http:','https:','ws'))]

@pytest.mark.parametrize('query,page', [('install', 'start/01_install'), ('early stopping', 'howto/02_best'),
    ('multi gpu', 'howto/10_several_gpus'), ('resume', 'howto/01_resume'),
    ('hyperparameters', 'howto/16_hyperparameters'), ('custom training loop', 'howto/15_training_loop'),
    ('Ctrl-C', 'howto/01_resume'), ('transfer learning', 'howto/05_fine_tune'),
    ('discriminative learning rates', 'howto/05_fine_tune')])
def test_search_finds_what_newcomers_type(query, page, site, pages, browser):
    from selenium.webdriver.support.wait import WebDriverWait
    browser.get((site/'search.html').as_uri() + f'?q={query.replace(" ", "+")}')
    js = """return document.querySelector('#search-results .search-summary') &&
        [...document.querySelectorAll('#search-results li a')].map(o => o.getAttribute('href'))"""
    found = WebDriverWait(browser, 20).until(lambda o: o.execute_script(js))
    assert any(o.startswith(page) for o in found[:3]), found[:5]

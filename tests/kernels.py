"Kernels of notebooks, in processes that have torch and learner imported"
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from processes import root,run_script

@contextmanager
def new_kernel(folder, cwd=root):
    "The client of a kernel that runs in `cwd`; its files lie in `folder`"
    # ports could be taken by others meanwhile
    file,_ = write_connection_file(str(folder/'kernel.json'), transport='ipc', ip=str(folder/'kernel'))
    start = f'from ipykernel.kernelapp import launch_new_instance; launch_new_instance(["-f", {file!r}])'
    client = BlockingKernelClient(connection_file=file)
    client.load_connection_file()
    with ThreadPoolExecutor(1) as pool:
        process = pool.submit(run_script, start, cwd=cwd, quiet=False)
        try:
            client.start_channels(hb=False) # it may take as long as it likes to start
            client.wait_for_ready(timeout=100)
            yield client
        finally:
            client.shutdown()
            try: process.result()
            finally: client.stop_channels()

"""Compiles the CUDA kernels; started by build-kernels.sh in an environment that has the compiler."""

import ctypes
import hashlib
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor

KERNELS = pathlib.Path("backend-cuda/kernels")
IMAGE, TABLE, CEILINGS = KERNELS / "plimsoll.fatbin", KERNELS / "plimsoll.fatbin.txt", KERNELS / "ceilings.txt"
TOOLS = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cu13"
ARCHITECTURES = ["90", "100", "120"]
# A block's registers in all.
REGISTERS = 65536
MOST_BYTES = 2_500_000


def sources():
    found = [f for pattern in ("*.cu", "*.cuh", "launch.h") for f in KERNELS.glob(pattern)]
    return sorted(found, key=lambda file: file.name)


def source_hash():
    """Of names and contents, in the order of names: backend-cuda/tests/kernels.rs takes the same."""
    digest = hashlib.sha256()
    for file in sources():
        digest.update(file.name.encode() + b"\n" + file.read_bytes())
    return digest.hexdigest()


def run(*command, cwd=None):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def compile_one(architecture, folder):
    """A cubin, and of each kernel: registers, static shared memory, bytes spilled."""
    target = folder / f"sm_{architecture}.cubin"
    flags = ["-std=c++17", "-O3", f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v", "-o", target]
    log = run(TOOLS / "bin/nvcc", *flags, (KERNELS / "all.cu").resolve())
    usage, name = {}, None
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            name, spilled = entry[1], None
        elif spills := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = sum(map(int, spills.groups()))
        elif used := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            usage[name] = (int(used[1]), int(shared[1]) if shared else 0, spilled)
    return usage


def compile_ptx(folder):
    target = folder / "compute_90.ptx"
    run(TOOLS / "bin/nvcc", "-std=c++17", "-O3", "-arch=compute_90", "-ptx", "-o", target, (KERNELS / "all.cu").resolve())
    version = re.search(r"^\.version (\S+)", target.read_text(), re.M)[1]
    assert version == "9.0", f"PTX {version}: drivers of release 580 take 9.0 at most"
    return version


def build(folder):
    with ThreadPoolExecutor(2) as pool:
        ptx = pool.submit(compile_ptx, folder)
        usages = list(pool.map(lambda a: compile_one(a, folder), ARCHITECTURES))
    images = [f"--image3=kind=elf,sm={a},file={folder}/sm_{a}.cubin" for a in ARCHITECTURES]
    images.append(f"--image3=kind=ptx,sm=90,file={folder}/compute_90.ptx")
    image = folder / "image.fatbin"
    run(TOOLS / "bin/fatbinary", f"--create={image}", "-64", "--compress-all", "--compress-mode=size", *images)
    return dict(zip(ARCHITECTURES, usages)), ptx.result(), image.read_bytes()


def constants():
    text = (KERNELS / "launch.h").read_text()
    return {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)$", text, re.M)}


def threads_of(kernel, sizes):
    """The longest name of a size that the kernel's begins with."""
    stems = [s for s in sizes if s.endswith("_THREADS") and kernel.upper().startswith(s.removesuffix("_THREADS"))]
    return sizes[max(stems, key=len)]


def table(usages, version, image):
    release = re.search(r"release (\S+), V(\S+)", run(TOOLS / "bin/nvcc", "--version"))[2]
    lines = [
        "# Written by scripts/build-kernels.sh: what plimsoll.fatbin was made of and what its code takes.",
        f"sources {source_hash()}",
        f"image {hashlib.sha256(image).hexdigest()} {len(image)}",
        f"compiler {release}",
        f"ptx {version}",
        "# architecture, kernel, registers, bytes of static shared memory, bytes spilled",
    ]
    for architecture, usage in usages.items():
        for kernel, figures in sorted(usage.items()):
            lines.append(f"sm_{architecture} {kernel} {' '.join(map(str, figures))}")
    return "\n".join(lines) + "\n"


def ceilings(usages):
    """A tenth more than measured, and never more than a block can have."""
    sizes = constants()
    lines = ["# kernel, threads of a block, registers of a thread at most (measured and a tenth)"]
    for kernel in sorted(usages["90"]):
        threads = threads_of(kernel, sizes)
        measured = max(usage[kernel][0] for usage in usages.values())
        lines.append(f"{kernel} {threads} {min(-(-measured * 11 // 10), 255, REGISTERS // threads)}")
    return "\n".join(lines) + "\n"


def check_ceilings(usages):
    wrong = []
    rows = [line.split() for line in CEILINGS.read_text().splitlines() if not line.startswith("#")]
    most = {kernel: (int(threads), int(registers)) for kernel, threads, registers in rows}
    sizes = constants()
    for architecture, usage in usages.items():
        if set(usage) != set(most):
            wrong.append(f"sm_{architecture}: kernels without a ceiling or gone: {sorted(set(usage) ^ set(most))}")
            continue
        for kernel, (registers, _, spilled) in usage.items():
            threads, ceiling = most[kernel]
            if threads != threads_of(kernel, sizes):
                wrong.append(f"{kernel}: {threads} threads in the table, {threads_of(kernel, sizes)} in launch.h")
            if spilled:
                wrong.append(f"sm_{architecture} {kernel}: {spilled} bytes spilled")
            if registers > ceiling or registers * threads > REGISTERS:
                wrong.append(f"sm_{architecture} {kernel}: {registers} registers, ceiling {ceiling}, {threads} threads")
    return wrong


def committed_usage():
    """Registers and shared memory as the committed image itself says."""
    usage, kernel, architecture = {}, None, None
    for line in run(TOOLS / "bin/cuobjdump", "--dump-resource-usage", IMAGE).splitlines():
        if found := re.search(r"^arch = sm_(\d+)", line):
            architecture = found[1]
        elif found := re.search(r"^ *Function (\w+):", line):
            kernel = found[1]
        elif kernel and (found := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line)):
            registers, stack, shared, local = map(int, found.groups())
            usage.setdefault(architecture, {})[kernel] = (registers, shared, stack + local)
            kernel = None
    return usage


def check_committed(fresh_table, usages):
    wrong = []
    if not TABLE.exists():
        return ["no table of the committed image: run scripts/build-kernels.sh"]
    without_image = lambda text: [line for line in text.splitlines() if not line.startswith("image ")]
    for old, new in zip(without_image(TABLE.read_text()), without_image(fresh_table), strict=False):
        if old != new:
            wrong.append(f"{TABLE.name} says `{old}`, compiled anew it is `{new}`")
    if len(TABLE.read_text().splitlines()) != len(fresh_table.splitlines()):
        wrong.append(f"{TABLE.name} has other kernels")
    image = IMAGE.read_bytes()
    stated = f"image {hashlib.sha256(image).hexdigest()} {len(image)}"
    if stated not in TABLE.read_text().splitlines():
        wrong.append(f"{IMAGE.name} is not the one of {TABLE.name}")
    committed = committed_usage()
    for architecture, usage in usages.items():
        for kernel, figures in usage.items():
            own = committed.get(architecture, {}).get(kernel)
            # The driver keeps 1 KB of shared memory in every block; newer readers count it.
            if own is None or own[0] != figures[0] or own[1] not in (figures[1], figures[1] + 1024) or own[2]:
                wrong.append(f"sm_{architecture} {kernel}: {own} in {IMAGE.name}, compiled anew {figures}")
    return wrong


def check_nvrtc():
    """The same sources through the run-time compiler: no headers but our own."""
    library = ctypes.CDLL(str(next((TOOLS / "lib").glob("libnvrtc.so.*"))))
    files = {file.name: file.read_bytes() for file in sources()}
    text = files.pop("all.cu")
    names = (ctypes.c_char_p * len(files))(*[name.encode() for name in files])
    headers = (ctypes.c_char_p * len(files))(*files.values())
    program = ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), text, b"all.cu", len(files), headers, names) == 0
    options = [b"--gpu-architecture=sm_90", b"--std=c++17"]
    code = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    if code:
        return [f"NVRTC: {log.value.decode()}"]
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    print(f"NVRTC: {size.value} bytes for sm_90")
    return []


def main():
    arguments = set(sys.argv[1:])
    if not arguments <= {"--check", "--ceilings"}:
        sys.exit("usage: scripts/build-kernels.sh [--check | --ceilings]")
    with tempfile.TemporaryDirectory() as folder:
        usages, version, image = build(pathlib.Path(folder))
    text = table(usages, version, image)
    print(f"PTX version {version}; image {len(image)} bytes; {len(usages['90'])} kernels a device")
    if "--ceilings" in arguments:
        CEILINGS.write_text(ceilings(usages))
    wrong = check_ceilings(usages)
    if "--check" in arguments:
        wrong += check_committed(text, usages) + check_nvrtc()
    if len(image) > MOST_BYTES:
        wrong.append(f"the image has {len(image)} bytes, {MOST_BYTES} at most")
    if wrong:
        sys.exit("\n".join(wrong))
    if "--check" not in arguments:
        IMAGE.write_bytes(image)
        TABLE.write_text(text)
        print(f"wrote {IMAGE} and {TABLE}")


main()

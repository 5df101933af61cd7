"""The live panel in real browsers, with real kernels: where it appears, what it draws, and what becomes of it."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_panel_is_live_while_a_cell_runs(anywhere):
    """The chart advances while a cell runs, and shows its number, its peak and an out-of-memory error."""
    anywhere.open(
        "%gpumem_panel",
        "block = gpu.allocate(600 * MiB)\nwith open('flag', 'w'): pass\nimport os\n"
        "try:\n    gpu.allocate(20 * GiB)\nexcept Exception: pass\n"
        "while os.path.exists('flag'): time.sleep(0.02)\ngpu.free(block)",
    )
    anywhere.run_all()
    anywhere.wait_for_panel()
    anywhere.wait_for_value("store.running?.number === 3")
    before = anywhere.value("store.shown.length")
    anywhere.wait_for_value(f"store.shown.length >= {before} + 8")
    assert anywhere.prompt(2).strip() == "[*]:"
    assert anywhere.value("store.newest('allocated')") == 600 * 2**20
    assert anywhere.page.locator(".gm-body:not([hidden]) .gm-status").inner_text() == "cell [3] runs"
    assert anywhere.value("store.shown.marks(0, 1e12).map(m => m.kind)") == ["oom"]
    (anywhere.root / "flag").unlink()
    anywhere.wait_for_prompt(2)
    anywhere.wait_for_value("store.running === null")
    cost = anywhere.value("store.cells.at(-1).devices['fake:0']")
    assert cost == {"peak": 600 * 2**20, "over": 600 * 2**20, "stays": 0, "exact": True}
    assert anywhere.panels() == 1


def test_panel_shows_a_virtual_gpu(lab):
    """PyTorch's own code on a virtual GPU: its memory, its blocks and its out-of-memory error are in the panel."""
    lab.open(
        "%gpumem_virtual on --gpu A100-40GB\nimport torch",
        "%gpumem_panel",
        "kept = [torch.empty(n * 2**18, device='cuda') for n in range(1, 30)]\ndel kept[::2]\n"
        "print('holds', torch.cuda.memory_allocated(), end='.')\ntime.sleep(1)\n"
        "torch.empty(60 * 2**30, dtype=torch.uint8, device='cuda')",
    ).run_all()
    lab.wait_for_panel(docked=True)
    lab.wait_for_prompt(3)
    slot = lab.value("store.state.devices.findIndex(d => d.label === 'cuda:0')")
    lab.page.locator(".jupyterlab-sidecar .gm-device").select_option(str(slot))
    lab.wait_for_value("store.map?.summary.stranded > 0 && store.shown.marks(0, 1e12).some(m => m.kind === 'oom')")
    assert lab.value("store.device.name") == "virtual A100-40GB"
    held = lab.value("store.newest('allocated')")
    assert held >= sum(range(2, 30, 2)) * 2**20
    assert lab.page.locator(".jp-OutputArea-output", has_text=f"holds {held}.").count() == 1
    assert lab.value("store.cells.at(-1).error") == "OutOfMemoryError"
    lab.wait_for_value("store.cells.at(-1).oom")
    sentence = lab.value("store.cells.at(-1).oom.sentence")
    assert sentence.startswith("One request of 60.00 GiB on a card of 39.39 GiB")
    why = lab.page.locator(".jupyterlab-sidecar .gm-why")
    assert why.inner_text() == f"[4] {sentence}."
    assert lab.value("store.marks(0, 1e12).map(m => m.verdict)") == ["absurd request"]
    width = "document.querySelector('.jupyterlab-sidecar .gpumem').parentElement.style.width = '{}'"
    lab.page.evaluate(width.format("300px"))
    lab.wait_for_value("view.readings.chart.plot.width <= 290")
    assert lab.value("view.body.scrollWidth <= view.body.clientWidth")
    assert why.bounding_box()["height"] <= 36
    assert why.get_attribute("title") == f"[4] {sentence}."
    lab.page.evaluate(width.format(""))


def test_docked_panel_folds_the_inline_one(lab):
    """In JupyterLab the panel docks; the inline view folds, unfolds on request, and again when the docked one goes."""
    lab.open("%gpumem_panel").run_all()
    lab.wait_for_panel(docked=True)
    inline, docked = lab.page.locator(".jp-Notebook .gpumem"), lab.page.locator(".jupyterlab-sidecar .gpumem")
    folded = inline.locator(".gm-folded")
    assert folded.inner_text().replace("\n", " ") == "GPU memory: shown in the sidebar. Show here"
    folded.get_by_role("button").click()
    lab.wait_for_panel(docked=False)
    assert docked.locator(".gm-folded").inner_text().startswith("GPU memory: shown in another place.")
    docked.get_by_role("button", name="Show here").click()
    lab.wait_for_panel(docked=True)
    lab.close_sidebar_tab()
    lab.wait_for_panel(docked=False)
    assert docked.count() == 0
    inline.get_by_role("button", name="Show in the sidebar").click()
    lab.wait_for_panel(docked=True)
    assert lab.panels() == 1


def test_the_tab_belongs_to_its_notebook(lab):
    """It has the notebook's name, goes when that is closed, and is there again, once, with a notebook opened again."""
    lab.open("%gpumem_panel").run_all()
    lab.wait_for_panel(docked=True)
    tab = f"GPU memory · {lab.name}"
    tab = tab if len(lab.name) <= 30 else f"GPU memory · {lab.name[:29]}…"
    assert lab.sidebar_tabs() == [tab]
    lab.close_notebook()
    lab.page.wait_for_function("() => document.querySelector('.jupyterlab-sidecar') === null")
    assert lab.sidebar_tabs() == []
    lab.open_again()
    lab.wait_for_panel(docked=True)
    assert lab.sidebar_tabs() == [tab]


def test_labels_are_whole(lab):
    """In a narrow sidebar words are left out, not cut; and no mark is drawn through the label of another."""
    lab.open("%gpumem_panel --inline", "kept = gpu.fragment(2)").run_all()
    panel = lab.wait_for_panel()
    for width in (200, 220, 230, 240, 250, 260, 300, 460):
        lab.page.evaluate(f"document.querySelector('.gpumem').parentElement.style.width = '{width}px'")
        lab.wait_for_value(f"view.readings.chart.plot.width <= {width}")
        labels = panel.locator(".gm-legend .gm-label").all()
        assert all(label.evaluate("e => e.scrollWidth <= e.clientWidth") for label in labels), width
        assert labels[2].inner_text().startswith("peak since" if width >= 230 else "peak ")
        assert labels[2].get_attribute("title").startswith("peak since ")
    lab.page.evaluate("document.querySelector('.gpumem').parentElement.style.width = ''")
    lab.wait_for_value("view.readings.chart.plot.width > 500")
    columns = """(() => {
      const chart = view.readings.chart, u = chart.plot, pixels = devicePixelRatio;
      const [start, end] = store.range, at = (start + end) / 2, step = 12 / u.bbox.width * pixels * (end - start);
      store.marks = () => [{time: at, kind: 'retry', amount: 1}, {time: at + step, kind: 'oom', amount: 1}];
      store.pause();
      u.redraw();
      const x = Math.round(u.valToPos(at + step, 'x', true)), ctx = u.ctx;
      const read = y => [...ctx.getImageData(x, y, 1, 1).data].slice(0, 3);
      return new Promise(done => requestAnimationFrame(() => done({
        label: read(u.bbox.top + 16 * pixels), below: read(u.bbox.top + 60 * pixels),
        colours: [chart.colours.retry, chart.colours.oom],
      })));
    })()"""
    seen = lab.value(columns)
    retry, oom = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in seen["colours"])
    assert seen["label"] == pytest.approx(retry, abs=3)
    assert seen["below"] == pytest.approx(oom, abs=3)
    panel.screenshot(path=lab.artifacts / "marks.png")


def test_panel_shows_where_memory_is_stranded(anywhere):
    """A fragmented cache shows in the map, in its sums, in pixels and in what the pointer tells of a block."""
    anywhere.open("%gpumem_panel --inline", "gpu.stacks = True\nkept = gpu.fragment(4)").run_all()
    panel = anywhere.wait_for_panel()
    anywhere.wait_for_value("store.map?.summary.segments === 4")
    assert anywhere.value("store.map.segments[0].entries.map(e => [e.size / 2**20, e.state])") == [
        [8, 0],
        [4, 1],
        [8, 0],
    ]
    assert panel.locator(".gm-summary").inner_text().split("\n") == [
        *("returnable", "0 B", "stranded", "64.00 MiB", "largest fit", "8.00 MiB")
    ]
    box = panel.locator(".gm-scroll").bounding_box()
    row, bar = anywhere.value(
        "[view.segments.blocks.rows[1].y + 4, view.segments.blocks.extent(view.segments.blocks.rows[1])]"
    )
    seen = {}
    for share in (0.2, 0.5):
        x = bar["left"] + share * bar["width"]
        anywhere.page.mouse.move(box["x"] + x, box["y"] + row)
        anywhere.page.wait_for_timeout(50)
        seen[share] = panel.locator(".gm-detail").inner_text()
        ratio = anywhere.page.evaluate("devicePixelRatio")
        pixel = anywhere.value(
            "[...view.segments.blocks.canvas.getContext('2d', {willReadFrequently: true})"
            f".getImageData({(x + 3) * ratio}, {row * ratio}, 1, 1).data].slice(0, 3)"
        )
        assert (pixel == [0x2B, 0x86, 0xC5]) == (share == 0.5)
    assert "8.00 MiB free, in a segment with live blocks" in seen[0.2]
    assert "4.00 MiB allocated" in seen[0.5]
    assert "In[3], line 2" in seen[0.5]
    assert "20.00 MiB segment, large pool, default stream" in seen[0.5]
    anywhere.page.mouse.click(box["x"] + bar["left"] + bar["width"] / 2, box["y"] + row)
    anywhere.page.mouse.move(5, 5)
    assert panel.locator(".gm-detail").inner_text().startswith("Pinned: 4.00 MiB allocated")
    frame = panel.locator(".gm-held").bounding_box()
    middle = box["x"] + bar["left"] + bar["width"] / 2
    assert frame["x"] < middle < frame["x"] + frame["width"]
    assert frame["width"] == pytest.approx(bar["width"] / 5, abs=2)
    assert frame["y"] <= box["y"] + row <= frame["y"] + frame["height"]


def test_reload_brings_the_panel_back_with_its_history(anywhere):
    """After F5 there is one panel again, with what happened before, cells included."""
    anywhere.open("%gpumem_panel", "block = gpu.allocate(64 * MiB)\ntime.sleep(1.5)")
    anywhere.run_all()
    anywhere.wait_for_panel()
    anywhere.wait_for_prompt(2)
    first = anywhere.value("store.shown.at(0, 'time')")
    anywhere.save()
    anywhere.reload()
    anywhere.wait_for_panel(docked=True if anywhere.is_lab else None)
    anywhere.wait_for_value("store.cells.length > 0")
    assert anywhere.value("store.shown.at(0, 'time')") <= first
    assert anywhere.value("store.cells.at(-1).number") == 3
    assert anywhere.panels() == 1
    length = anywhere.value("store.shown.length")
    anywhere.wait_for_value(f"store.shown.length > {length} + 2")


def test_restart_leaves_one_panel(anywhere):
    """After a restart of the kernel and another run there is one live panel, and no dead one beside it."""
    anywhere.open("%gpumem_panel").run_all()
    anywhere.wait_for_panel()
    anywhere.restart()
    line = "GPU memory: the kernel has ended or was restarted. Run %gpumem_panel again."
    anywhere.page.locator(".gm-folded", has_text=line).wait_for()
    assert anywhere.panels() == 0
    anywhere.page.wait_for_function("document.querySelectorAll('.jupyterlab-sidecar').length === 0")
    anywhere.run_all()
    anywhere.wait_for_prompt(1, "[2]:")
    anywhere.wait_for_value("store.silence < 1 && store.shown.length > 4")
    assert anywhere.panels() == 1
    if anywhere.is_lab:
        assert anywhere.page.locator(".jupyterlab-sidecar").count() == 1


def test_two_views_are_one_panel(anywhere):
    """A second view takes over and the first folds; which one is open is the user's choice."""
    anywhere.open("%gpumem_panel --inline", "%gpumem_panel --inline").run_all()
    anywhere.wait_for_panel()
    anywhere.wait_for_prompt(2)
    anywhere.page.wait_for_function("document.querySelectorAll('.gpumem').length === 2")
    views = anywhere.page.locator(".gpumem")
    anywhere.page.wait_for_function("document.querySelectorAll('.gpumem')[0].gpumem.body.hidden")
    assert anywhere.panels() == 1
    views.nth(0).get_by_role("button", name="Show here").click()
    anywhere.page.wait_for_function("document.querySelectorAll('.gpumem')[1].gpumem.body.hidden")
    assert anywhere.panels() == 1


def test_off_takes_every_view_away(lab):
    """Closing the panel empties the page and the sidebar."""
    lab.open("%gpumem_panel", "%gpumem_panel off")
    lab.run(0)
    lab.run(1)
    lab.wait_for_panel(docked=True)
    lab.run(2)
    lab.page.wait_for_function("document.querySelectorAll('.gpumem, .jupyterlab-sidecar').length === 0")


def test_buttons_wait_for_the_cell_and_work_once(lab):
    """Ten clicks while a cell runs are one request, which says that it is queued and is answered afterwards."""
    lab.open(
        "%gpumem_panel --inline",
        "import os\ngpu.free(gpu.allocate(64 * MiB))\nwith open('busy', 'w'): pass\n"
        "while os.path.exists('busy'): time.sleep(0.02)",
        "print('emptied', gpu.emptied)",
    )
    lab.run(0)
    lab.run(1)
    panel = lab.wait_for_panel()
    lab.run(2)
    lab.wait_for_value("store.running !== null")
    button = panel.get_by_role("button", name="Empty cache")
    button.scroll_into_view_if_needed()
    for _ in range(10):
        button.click()
    assert panel.locator(".gm-queued").inner_text() == "Empty cache: queued until the cell ends"
    (lab.root / "busy").unlink()
    panel.locator(".gm-answer", has_text="64.00 MiB").wait_for()
    assert panel.locator(".gm-queued").is_hidden()
    lab.run(3)
    lab.page.locator(".jp-OutputArea", has_text="emptied 1").first.wait_for()


def test_dark_theme_and_narrow_places(dark_lab):
    """In a dark page the panel is dark, readable and complete at 300 pixels."""
    dark_lab.open("%gpumem_panel --inline", "kept = gpu.fragment(2)").run_all()
    panel = dark_lab.wait_for_panel()
    dark_lab.wait_for_value("store.map?.segments.length > 1")
    dark_lab.page.evaluate("document.querySelector('.gpumem').parentElement.style.width = '300px'")
    dark_lab.wait_for_value("view.readings.chart.plot.width <= 290")
    style = "getComputedStyle(view.root)"
    assert dark_lab.value(f"{style}.backgroundColor") == "rgb(20, 24, 28)"
    assert dark_lab.value(f"{style}.color") == "rgb(230, 233, 236)"
    assert dark_lab.value("view.body.scrollWidth <= view.body.clientWidth")
    values = panel.locator(".gm-legend .gm-value").all()
    rights = {round(value.bounding_box()["x"] + value.bounding_box()["width"]) for value in values}
    assert len(rights) == 1


def test_changing_the_theme_leaves_the_chart_as_wide_as_it_was(anywhere):
    """The page is hidden while another theme loads; afterwards everything has its size, in the new colours."""
    anywhere.open("%gpumem_panel --inline", "kept = gpu.fragment(2)").run_all()
    anywhere.wait_for_panel()
    anywhere.wait_for_value("store.map?.segments.length > 1")
    anywhere.change_theme("JupyterLab Dark")
    anywhere.wait_for_value("getComputedStyle(view.root).color === 'rgb(230, 233, 236)'")
    anywhere.wait_for_value("view.readings.host.clientWidth > 0")
    anywhere.wait_for_value("view.readings.chart.plot.width === view.readings.host.clientWidth")
    anywhere.change_theme("JupyterLab Light")
    anywhere.wait_for_value("getComputedStyle(view.root).color === 'rgb(31, 35, 40)'")


def test_a_panel_without_a_device_waits_and_one_whose_device_is_gone_says_so(lab):
    """Before the first use of a GPU the kernel is not silent; a virtual GPU that was switched off has no numbers."""
    lab.open(
        "devices.remove_backend(gpu)\n%gpumem_virtual on --gpu 24GiB\nimport torch",
        "%gpumem_panel",
        "kept = torch.empty(2**28, device='cuda')",
        "%gpumem_virtual off",
        "%gpumem_virtual on --gpu T4\nkept = torch.empty(2**20, device='cuda')",
    )
    for number in range(3):
        lab.run(number)
    lab.wait_for_prompt(2)
    panel = lab.page.locator(".jupyterlab-sidecar .gm-body:not([hidden])")
    notice, chart = panel.locator(".gm-notice"), panel.locator(".gm-chart")
    notice.wait_for()
    received = lab.value("store.messages")
    lab.wait_for_value(f"store.messages > {received} + 16")  # longer than a silence that is remarked upon
    assert notice.inner_text() == "No GPU is used yet; the panel begins with its first use."
    assert chart.is_hidden()
    lab.run(3)
    lab.wait_for_value("store.newest('allocated') === 2**30")
    lab.wait_for_value("view.readings.chart.plot.width === view.readings.host.clientWidth")
    assert chart.is_visible()
    notice.wait_for(state="hidden")
    lab.run(4)
    lab.wait_for_value("store.device.gone")
    assert notice.inner_text() == "cuda:0 is not there any more: the chart ends with what it held last."
    assert panel.locator(".gm-status").inner_text() == "gone"
    assert set(panel.locator(".gm-legend .gm-value").all_inner_texts()) == {"\N{EN DASH}"}
    assert panel.locator(".gm-map").is_hidden()
    lab.run(5)
    lab.wait_for_value("store.device.name === 'virtual T4' && store.newest('allocated') === 4 * 2**20")
    lab.wait_for_value("store.map !== null")
    assert panel.locator(".gm-device option").all_inner_texts()[0].endswith(" · gone")
    notice.wait_for(state="hidden")


def test_keyboard_reaches_everything(lab):
    """Tab goes through every control; the arrow keys read the chart and the map."""
    lab.open("%gpumem_panel --inline", "kept = gpu.fragment(2)\ntime.sleep(1)").run_all()
    panel = lab.wait_for_panel()
    lab.wait_for_value("store.map?.segments.length === 2")
    reachable = lab.value(
        "[...view.body.querySelectorAll('button, select, [tabindex]')]"
        ".filter(e => e.checkVisibility() && !e.disabled && e.tabIndex < 0).length"
    )
    assert reachable == 0
    unnamed = (
        "[...view.body.querySelectorAll('button, select')].filter(e => !(e.ariaLabel || e.innerText.trim())).length"
    )
    assert lab.value(unnamed) == 0
    panel.locator(".gm-chart").focus()
    lab.page.keyboard.press("ArrowLeft")
    lab.page.wait_for_function("document.querySelector('.gm-when').innerText.startsWith('at ')")
    lab.page.keyboard.press("+")
    lab.wait_for_value("store.settings.zoom !== null")
    lab.page.keyboard.press("Escape")
    lab.page.keyboard.press(" ")
    lab.wait_for_value("store.settings.paused !== null")
    panel.locator(".gm-scroll").focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        lab.page.keyboard.press(key)
    assert panel.locator(".gm-detail").inner_text().startswith("Pinned: 4.00 MiB allocated")


def test_twenty_thousand_blocks_are_drawn(lab):
    """All of 20,000 blocks are in the picture; how long drawing them anew takes, pixels included, is kept."""
    lab.open(
        "%gpumem_panel --inline", "kept = [gpu.allocate(4096) for _ in range(20_000)]\nfor a in kept[::2]: gpu.free(a)"
    )
    lab.run_all()
    lab.wait_for_panel()
    lab.wait_for_value("store.map?.summary.blocks >= 20000")
    script = """(() => {
      const blocks = view.segments.blocks;
      blocks.scroller.style.maxHeight = "3000px";
      const times = [];
      for (let n = 0; n < 100; n++) {
        blocks.known = new WeakMap();
        const began = performance.now();
        blocks.drawNow();
        blocks.canvas.getContext("2d").getImageData(0, 0, 1, 1);
        times.push(performance.now() - began);
      }
      blocks.scroller.style.maxHeight = "";
      return times.sort((a, b) => a - b);
    })()"""
    times = lab.value(script)
    lab.note("draw_20000_blocks_ms", {"median": times[50], "least": times[0], "most": times[-1]})
    assert lab.value("view.segments.blocks.rows.reduce((n, row) => n + row.entries.length, 0)") >= 20_000

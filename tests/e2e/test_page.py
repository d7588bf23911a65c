"""The page in a real browser, over WebDriver (https://www.w3.org/TR/webdriver2/). Needs chromium and chromedriver;
conftest.py leaves this file out where they are missing."""
import subprocess
import time

import httpx
import pytest

from conftest import adapter_names

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the standard's name for a reference to an element
TIMEOUT_S = 60


class Browser:
    """One headless window."""

    def __init__(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        line = next(line for line in self.driver.stdout if "started successfully on port" in line)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{line.rstrip().rstrip('.').rsplit(' ', 1)[1]}",
                                 timeout=TIMEOUT_S)
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self.http.post("/session", json={"capabilities": {"alwaysMatch": capabilities}}).json()["value"]
        self.session = f"/session/{made['sessionId']}"

    def do(self, path, **body):
        response = self.http.post(self.session + path, json=body)
        assert response.status_code == 200, response.text
        return response.json()["value"]

    def find(self, selector) -> str:
        return f"/element/{self.do('/element', using='css selector', value=selector)[ELEMENT]}"

    def run(self, script):
        return self.do("/execute/sync", script="return " + script, args=[])

    def wait_until(self, script) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.run(script):
            assert time.monotonic() < deadline, self.run("document.body.innerText")
            time.sleep(0.05)

    def complaints(self) -> list:
        return self.do("/se/log", type="browser")

    def close(self):
        self.http.delete(self.session)
        self.driver.terminate()
        self.driver.wait()


@pytest.fixture
def browser():
    window = Browser()
    yield window
    window.close()


def test_one_prompt_to_several_adapters(server, browser):
    names = adapter_names()
    browser.do("/url", url=server.url + "/")
    browser.wait_until(f"document.querySelectorAll('#models input').length == {len(names) + 1}")
    assert browser.run("document.getElementById('status').textContent") == f"1 base, {len(names)} adapters"
    labels = browser.run("[...document.querySelectorAll('#models label')].map(label => label.textContent)")
    assert labels[0].startswith(" base ")
    assert sorted(label.split()[0] for label in labels[1:]) == names
    assert all("rank" in label and "MiB" in label for label in labels[1:])

    browser.do(browser.find("#models input[value=base]") + "/click")  # all were chosen
    browser.do(browser.find("#prompt") + "/value", text="The parcel never came.")
    browser.do(browser.find("#max") + "/clear")
    browser.do(browser.find("#max") + "/value", text="8")
    browser.do(browser.find("#send") + "/click")
    browser.wait_until(f"document.querySelectorAll('article').length == {len(names)} && "
                       "!document.getElementById('send').disabled")
    cards = browser.run("[...document.querySelectorAll('article')].map(card => ({name: card.children[0].textContent, "
                        "numbers: card.children[1].textContent, answer: card.children[3].textContent}))")
    assert sorted(card["name"] for card in cards) == names
    for card in cards:
        said = server.openai().chat.completions.create(
            model=card["name"], messages=[{"role": "user", "content": "The parcel never came."}], temperature=0,
            max_tokens=8)
        assert card["answer"] == said.choices[0].message.content
        assert card["numbers"].startswith(f"{said.usage.completion_tokens} tokens in ")
    assert browser.complaints() == []

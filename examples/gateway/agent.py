"""Ask the model once. The gateway's address and the session's key are in the environment."""

import json
import os
import urllib.request

body = {
    "model": os.environ["OPENAI_MODEL"],
    "messages": [{"role": "user", "content": "Say hello."}],
}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {
        "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        "content-type": "application/json",
    },
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])

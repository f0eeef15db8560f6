"""Reranking: documents in order of relevance to a query."""

import json
import sys
import urllib.request

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234"
body = {
    "query": "Where does the Rhine begin?",
    "documents": ["The Rhine begins in the Swiss Alps.", "Bread is baked from flour."],
    "return_documents": True,
}
request = urllib.request.Request(
    f"{url}/v1/rerank", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request) as answer:
    for result in json.load(answer)["results"]:
        print(f"{result['relevance_score']:.3f} {result['document']['text']}")

#!/bin/sh
# A call with nothing but curl; the answer is JSON. Argument: the question, without quotes in it.
set -eu
curl --fail-with-body --silent --show-error "$QUINTAIN_GATEWAY_URL/invoke" \
  --header "Authorization: Bearer $QUINTAIN_SESSION_TOKEN" \
  --data "{\"question\": \"$1\"}"

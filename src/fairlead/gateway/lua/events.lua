-- The answer to a streamed request for a cascade. The sidecar asks an engine for it in one piece, to have it judged, and
-- writes it as events. If the sidecar is gone before that, the answer still comes in one piece: it becomes one event here.

local QUOTE, BACKSLASH, COLON, OPENS, OPENS_LIST, CLOSES, CLOSES_LIST = 34, 92, 58, 123, 91, 125, 93

local function closing_quote(s, from)
  while true do
    local quote = s:find('"', from, true)
    if not quote then return nil end
    local before = quote - 1
    while before >= from and s:byte(before) == BACKSLASH do before = before - 1 end
    if (quote - before) % 2 == 1 then return quote end
    from = quote + 1
  end
end

-- A chunk instead of a completion: `message` is called `delta`, and each tool call says which one it is.
local function as_chunk(s)
  local pieces, done, at, depth = {}, 1, 1, 0
  local top, calls = nil, nil  -- the key at the top that we are below, and the number of the next tool call
  local function put(from, to, text)
    pieces[#pieces + 1] = s:sub(done, from - 1)
    pieces[#pieces + 1] = text
    done = to + 1
  end
  while true do
    at = s:find('["{}%[%]]', at)
    if not at then break end
    local byte = s:byte(at)
    if byte == QUOTE then
      local quote = closing_quote(s, at + 1)
      if not quote then return nil end
      local name, colon = s:sub(at + 1, quote - 1), s:find("[^ \t\r\n]", quote + 1)
      if colon and s:byte(colon) == COLON then
        if depth == 1 then
          top = name
          local from, to = s:find('^[ \t\r\n]*"chat%.completion"', colon + 1)
          if name == "object" and from then put(from, to, '"chat.completion.chunk"') quote = to end
        elseif top == "choices" and depth == 3 and name == "message" then
          put(at, quote, '"delta"')
        elseif top == "choices" and depth == 4 and name == "tool_calls" then
          calls = 0
        end
      end
      at = quote + 1
    else
      if byte == OPENS or byte == OPENS_LIST then
        depth = depth + 1
        if byte == OPENS and depth == 6 and calls then
          put(at + 1, at, string.format('"index":%d,', calls))
          calls = calls + 1
        end
      elseif byte == CLOSES or byte == CLOSES_LIST then
        depth = depth - 1
        if depth == 4 then calls = nil end
      end
      at = at + 1
    end
  end
  pieces[#pieces + 1] = s:sub(done)
  return (table.concat(pieces):gsub("[\r\n]", " "))
end

function envoy_on_response(handle)
  local headers = handle:headers()
  if headers:get(":status") ~= "200" or not (headers:get("content-type") or ""):find("^application/json") then return end
  local body = handle:body()
  if not body or body:length() == 0 then return end
  local chunk = as_chunk(body:getBytes(0, body:length()))
  if not chunk then return end
  local length = body:setBytes("data: " .. chunk .. "\n\ndata: [DONE]\n\n")
  headers = handle:headers()  -- what was got before the wait for the body is not valid any more
  headers:replace("content-type", "text/event-stream; charset=utf-8")
  headers:replace("content-length", tostring(length))
end

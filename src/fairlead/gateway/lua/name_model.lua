-- On the way to an engine, for a request to a route: writes the name of the model that this engine serves into the body,
-- in the places that guard.lua has found. Each attempt passes here, so a retry at another model's engine names that. All
-- attempts share one set of headers: what is removed for the first is not there for the second, so the places stay in.

local QUOTED = {['"'] = '\\"', ["\\"] = "\\\\"}

function envoy_on_request(handle)
  local headers = handle:headers()
  local model, spans = headers:get("x-fairlead-blind-model"), headers:get("x-fairlead-model-spans")
  local quoted = headers:get("x-fairlead-model-quoted")
  if not model or not spans then return end
  if spans == "query" then
    local escaped = model:gsub("[^%w._~-]", function(byte) return string.format("%%%02X", byte:byte()) end)
    headers:replace(":path", (headers:get(":path"):gsub("([?&]model=)[^&]*", function(key) return key .. escaped end)))
    return
  end
  if quoted then model = '"' .. model:gsub('["\\]', QUOTED) .. '"' end
  local body = handle:body()
  if not body then return end
  local pieces, done = {}, 0
  for from, to in spans:gmatch("(%d+)-(%d+)") do
    pieces[#pieces + 1] = body:getBytes(done, tonumber(from) - done)
    pieces[#pieces + 1] = model
    done = tonumber(to)
  end
  pieces[#pieces + 1] = body:getBytes(done, body:length() - done)
  local length = body:setBytes(table.concat(pieces))
  handle:headers():replace("content-length", tostring(length))  -- `headers` is not valid after a wait for the body
end

-- What Envoy does by itself with a request that the sidecar has not read: it is away or slow, or has no use for the path.
-- The parameters that only Fairlead may set are blanked, a body that may hide them is refused, and the request goes to
-- engines of its model. CONFIG, written above, holds what the configuration says.
--
-- One pass over the body, without recursion: a string is a key where a colon follows it. Where a body is not JSON this
-- is wrong, and so is the body: engines refuse it. Python's parser also takes UTF-16 and UTF-32, which NUL bytes betray.

local bit = require("bit")
local ffi = require("ffi")

local QUOTE, COMMA, COLON, BACKSLASH, OPENS_LIST, CLOSES_LIST, OPENS, CLOSES = 34, 44, 58, 92, 91, 93, 123, 125
local LONGEST_NAME = 6 * 24  -- each character of the longest parameter written as \uXXXX
local MOST_NAMES = 100000  -- looked at in one body: some 20 ms
local MOST_EDITS = 64
local MOST_MEDIA = 1024  -- named by clients
local MOST_MEDIA_TEXTS = 65536  -- looked at
local MOST_URL_BYTES = 2048  -- looked at of one: its host has up to 253 characters, of up to six bytes in JSON
local LEAST_ESCAPED = 8  -- bytes of a name with an escape in it
local MOST_PARTS = 256
local MOST_HEAD_BYTES = 4096  -- of one part of a form
local ESCAPES = {b = "\b", f = "\f", n = "\n", r = "\r", t = "\t"}

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 0x40), 0x80 + code % 0x40) end
  local high = 0xE0 + math.floor(code / 0x1000)
  return string.char(high, 0x80 + math.floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
end

-- The text of a JSON string without its quotes.
local function unescaped(raw)
  if not raw:find("\\", 1, true) then return raw end
  return (raw:gsub("\\(.)(%x?%x?%x?%x?)", function(letter, hex)
    if letter == "u" and #hex == 4 then return utf8(tonumber(hex, 16)) end
    return (ESCAPES[letter] or letter) .. hex
  end))
end

-- First bytes of the names that matter, or of an escape: most keys need no further look.
local FIRST = {[BACKSLASH] = true, [string.byte("model")] = true}
if CONFIG.tenant then FIRST[string.byte("cache_salt")] = true end
for name in pairs(CONFIG.parameters) do FIRST[name:byte()] = true end
local FIRST_OF_MEDIA, LENGTHS_OF_MEDIA = {[BACKSLASH] = true}, {}
for _, names in ipairs({CONFIG.media, CONFIG.locators, CONFIG.free}) do
  for name in pairs(names) do
    FIRST_OF_MEDIA[name:byte()] = true
    LENGTHS_OF_MEDIA[#name] = true
  end
end

local function is_data(text) return text == "" or text:find("^[dD][aA][tT][aA]:") ~= nil end

-- Why an engine may not get an image or a clip as `text` says; nil: it may. See `api.media_sources`.
local function refused_source(text)
  if is_data(text) then return nil end
  for beginning in pairs(CONFIG.beginnings) do
    if text:sub(1, #beginning) == beginning then return nil end
  end
  local _, scheme = text:find("^%s*[hH][tT][tT][pP][sS]?://")
  if scheme and CONFIG.domains["*"] then return nil end
  if scheme then
    local domain, after = text:match("^([%w_.-]+)()", scheme + 1)
    if not domain then domain, after = text:match("^(%[[%x:.]+%])()", scheme + 1) end
    local port = domain and text:match("^:%d%d?%d?%d?%d?()", after)
    local rest = domain and text:sub(port or after, port or after)
    if domain and (rest == "" or rest:find("[/?#]")) and CONFIG.domains[domain:gsub("%.+$", ""):lower()] then return nil end
  end
  return "An image or a clip is not in the body, and from where it is this gateway's engines may not fetch any: "
    .. "send its bytes as data:image/png;base64,..., or ask the operator for gateway.allowed_media_domains"
end

-- FNV-1a: the same for the same text, but texts can be made that share it.
local function hashed(text)
  local hash = 14695981039346656037ULL
  for at = 1, #text do hash = bit.bxor(hash, text:byte(at)) * 1099511628211ULL end
  return "l" .. tostring(hash):gsub("ULL", "")
end

-- The salt of a tenant's request, as JSON; nil: it needs none. `own`: a client's, as JSON. Without one, and for a tenant
-- whose name is not long, it is the sidecar's, so that caches stay warm. See `api.cache_salt`. Who has a long name shares
-- nothing with anybody: `once` is of this request.
local function salt_of(tenant, own, once)
  local of_client = (own and own ~= "null" and own ~= '""') and "-" .. hashed(own) or ""
  if tenant == "" and of_client == "" then return nil end
  local name = #tenant > CONFIG.longest_tenant and hashed(tenant .. once)
    or tenant:gsub(".", function(letter) return string.format("%02x", letter:byte()) end)
  return '"' .. name .. of_client .. '"'
end

-- Where the string ends whose first character is `s[from]`: the index of its closing quote, or nil.
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

-- The index of the first byte from `at` (counted from 0, as in all of `bytes`) that is not white space.
local function past_space(bytes, at)
  while bytes[at] == 32 or bytes[at] == 10 or bytes[at] == 13 or bytes[at] == 9 do at = at + 1 end
  return at
end

local function past_scalar(bytes, at, size)
  while at < size do
    local byte = bytes[at]
    if byte == COMMA or byte <= 32 or byte == CLOSES or byte == CLOSES_LIST then return at end
    at = at + 1
  end
  return at
end

-- Whether images or clips may be in a body: their parts are not told from other objects here.
local function may_have_media(s)
  for _, sign in ipairs({"image", "video", "audio", "\\u00"}) do
    if s:find(sign, 1, true) then return true end
  end
  return false
end

-- The index of the first byte after a text, a number or a word that begins at `at`.
local function past_value(s, bytes, at, size)
  return bytes[at] == QUOTE and closing_quote(s, at + 2) or past_scalar(bytes, at, size)
end

-- Whether a value is one: under its key, in an object under such a key, or in a list of them, where it has no key.
local function is_medium(kind, media_depth, of_list)
  return kind == "media" or (media_depth and kind == "locator") or (kind == nil and of_list)
end

-- The edits that a JSON body needs, in order: {from, to, what it is}; and the model that it names. nil: not to be read,
-- or with a reason where it names an image that no engine may fetch. `tenant`: whose cache it is to use; nil: anybody's.
-- `adds`: whether it needs a salt where it has none. `once`: a text that no other request has.
local function read_json(s, tenant, adds, once)
  if s:find("\0", 1, true) then return nil end
  local bytes, size = ffi.cast("const uint8_t *", s), #s
  local edits, model = {}, nil
  local at, depth, names, media = 0, 0, 0, 0
  local has_media = nil  -- looked for once, where there is a name
  local blanked_from, blanked_depth, instead = nil, -1, nil
  local kind = nil  -- of the key before a value: "media", "locator", "free" or "other"
  local media_depth, free_depth = nil, nil  -- within which all is of a medium, or anything
  local texts = 0  -- that say where a medium is
  local lists = {}  -- by depth: whether a list's texts are media
  local salts, opened, closed = 0, nil, nil  -- at the top level
  while at < size do
    local byte = bytes[at]
    local before = kind
    kind = nil
    if byte == QUOTE then
      local quote = closing_quote(s, at + 2)
      if not quote then return nil end
      local first, last = at + 2, quote - 1
      at = past_space(bytes, quote)
      if bytes[at] == COLON and not blanked_from then
        local value = past_space(bytes, at + 1)
        at = value
        if FIRST[s:byte(first)] and last - first < LONGEST_NAME then
          names = names + 1
          if names > MOST_NAMES then return nil end
          local name = unescaped(s:sub(first, last))
          local where = CONFIG.parameters[name]
          if where == "anywhere" or (where == "top" and depth == 1) then
            if bytes[value] == OPENS or bytes[value] == OPENS_LIST then
              blanked_from, blanked_depth, instead = value, depth, "null"
            else
              at = past_value(s, bytes, value, size)
              edits[#edits + 1] = {value + 1, at, "null"}
            end
          elseif where == "of media" and bytes[value] ~= OPENS and bytes[value] ~= OPENS_LIST then
            if has_media == nil then has_media = may_have_media(s) end
            if has_media then
              at = past_value(s, bytes, value, size)
              edits[#edits + 1] = {value + 1, at, "null"}
              media = media + 1
              if media > MOST_MEDIA then return nil end
            end
          elseif name == "cache_salt" and tenant and depth == 1 then
            salts = salts + 1
            if bytes[value] == OPENS or bytes[value] == OPENS_LIST then  -- SGLang's, of each prompt of a list
              blanked_from, blanked_depth, instead = value, depth, salt_of(tenant, "[]", once)
            else
              at = past_value(s, bytes, value, size)
              edits[#edits + 1] = {value + 1, at, salt_of(tenant, s:sub(value + 1, at), once) or "null"}
            end
          elseif name == "model" and depth == 1 and bytes[value] == QUOTE then
            at = closing_quote(s, value + 2) or size
            model = unescaped(s:sub(value + 2, at - 1))
            edits[#edits + 1] = {value + 1, at, "model"}
          end
          if #edits - media > MOST_EDITS then return nil end
        end
        if at == value then
          kind = "other"
          local length = last - first + 1
          if FIRST_OF_MEDIA[s:byte(first)] and length <= LONGEST_NAME
            and (LENGTHS_OF_MEDIA[length] or length >= LEAST_ESCAPED) then
            local name = unescaped(s:sub(first, last))
            if CONFIG.free[name] and (name ~= "input" or depth > 1) then
              kind = "free"
            elseif CONFIG.media[name] and (name ~= "source" or bytes[value] == OPENS) then
              kind = "media"
            elseif CONFIG.locators[name] then
              kind = "locator"
            end
          end
        end
      elseif not free_depth and not blanked_from then
        if is_medium(before, media_depth, lists[depth]) then
          texts = texts + 1
          if texts > MOST_MEDIA_TEXTS then return nil, nil, "The body has more images and clips than can be looked at" end
          local text = s:sub(first, math.min(last, first + MOST_URL_BYTES))
          local reason = not is_data(text) and refused_source(unescaped(text))
          if reason then return nil, nil, reason end
        end
      end
    elseif byte == OPENS or byte == OPENS_LIST then
      if before == "free" and not free_depth then free_depth = depth end
      local is_media = is_medium(before, media_depth, lists[depth])
      if is_media and not media_depth then media_depth = depth end
      depth = depth + 1
      lists[depth] = is_media and byte == OPENS_LIST
      if depth == 1 and byte == OPENS then opened = at end
      at = at + 1
    elseif byte == CLOSES or byte == CLOSES_LIST then
      depth = depth - 1
      if depth == 0 and byte == CLOSES then closed = at end
      at = at + 1
      if free_depth and depth <= free_depth then free_depth = nil end
      if media_depth and depth <= media_depth then media_depth = nil end
      if blanked_from and depth == blanked_depth then
        edits[#edits + 1] = {blanked_from + 1, at, instead}
        blanked_from = nil
      end
    else
      at = at + 1
    end
  end
  if blanked_from then return nil end
  local salt = adds and tenant and salts == 0 and opened and closed and salt_of(tenant, nil, once)
  if salt then
    local comma = past_space(bytes, opened + 1) < closed and "," or ""
    edits[#edits + 1] = {closed + 1, closed, comma .. '"cache_salt":' .. salt}
  end
  return edits, model
end

-- The name that a part of a form has, by its headers; nil: none, false: two readers could find two.
local function field_name(head)
  local header, lower = "\r\ncontent-disposition:", head:lower()
  local _, last = lower:find(header, 1, true)
  if not last or lower:find(header, last, true) then return false end
  local line = head:sub(last + 1, head:find("\r\n", last, true) - 1)
  local name, at = nil, line:find(";", 1, true)
  while at and not line:find("^;%s*$", at) do
    local key, from = line:match('^;%s*([^%s=;"]+)%s*=%s*()', at)
    if not key then return false end
    local quoted = line:byte(from) == QUOTE
    local stop = quoted and closing_quote(line, from + 1) or not quoted and (line:find(";", from, true) or #line + 1)
    if not stop then return false end
    key = key:lower()
    if key:find("^name%*") then return false end  -- in another encoding, or in parts (RFC 2231)
    if key == "name" then
      if name then return false end
      name = line:sub(quoted and from + 1 or from, stop - 1)
      if name:find("\\", 1, true) then return false end
    end
    at = line:find(";", stop, true)
  end
  return name
end

-- The same for a form: audio and images come so. A part has headers, an empty line, and a value up to the boundary.
local function read_form(s, boundary)
  for name, where in pairs(CONFIG.parameters) do
    if where == "anywhere" and s:find(name, 1, true) then return nil end
  end
  local edits, model = {}, nil
  local delimiter = "--" .. boundary
  local from, last = s:find(delimiter, 1, true)
  for _ = 1, MOST_PARTS do
    if not from then return nil end
    if s:sub(last + 1, last + 2) == "--" then return edits, model end
    local head = s:sub(last + 1, last + MOST_HEAD_BYTES)
    local _, head_length = head:find("\r\n\r\n", 1, true)
    local next_from, next_last = s:find("\r\n" .. delimiter, last + 1, true)
    if not head_length or not next_from or last + head_length >= next_from then return nil end
    local name = field_name(head:sub(1, head_length - 2))
    local where = CONFIG.parameters[name or ""]
    if name == false or (where and where ~= "of media") or (name == "model" and model) then return nil end
    local of = name and name:gsub("%[%]$", "")
    if of and (of == "url" or of:find("_url$") or CONFIG.media[of]) then
      local text = s:sub(last + head_length + 1, math.min(next_from - 1, last + head_length + MOST_URL_BYTES))
      local is_file = of ~= "url" and not of:find("_url$") and not text:find("^%s*[hHfF][tTiI][tTlL][pPeE][sS]?:")
      local reason = not is_file and refused_source(text)
      if reason then return nil, nil, reason end
    end
    if name == "model" then
      model = s:sub(last + head_length + 1, next_from - 1)
      edits[#edits + 1] = {last + head_length + 1, next_from - 1, "model"}
    end
    from, last = next_from, next_last
  end
  return nil
end

-- `s` without the parameters, and where the model's name stands in it: "from-to,..." counted from 0.
local function edited(s, edits)
  local pieces, length, done, spans = {}, 0, 0, {}
  local function add(piece)
    pieces[#pieces + 1] = piece
    length = length + #piece
  end
  for _, edit in ipairs(edits) do
    add(s:sub(done + 1, edit[1] - 1))
    if edit[3] == "model" then
      spans[#spans + 1] = string.format("%d-%d", length, length + edit[2] - edit[1] + 1)
      add(s:sub(edit[1], edit[2]))
    else
      add(edit[3])
    end
    done = edit[2]
  end
  add(s:sub(done + 1))
  return table.concat(pieces), table.concat(spans, ",")
end

-- What to do with a body: its edits and the model, or nothing and why it is refused, and whether also of trusted clients.
local function read(s, headers)
  local encoding = headers:get("content-encoding")
  if encoding and encoding:lower() ~= "identity" then
    return nil, nil, "The body is compressed (content-encoding); send it as it is"
  end
  local first = s:match("^[ \t\r\n]*(.)")
  local edits, model, reason
  if first == "{" or first == "[" then
    local path = (headers:get(":path") or ""):match("^[^?]*")
    local tenant = CONFIG.tenant and (headers:get(CONFIG.tenant) or "") or nil
    edits, model, reason = read_json(s, tenant, CONFIG.salted[path], headers:get("x-request-id") or "")
    if edits then return edits, model end
    return nil, nil, reason or "The body is not JSON in UTF-8, or too much of it is keys", reason ~= nil
  end
  local kind, boundary = headers:get("content-type") or "", nil
  if kind:lower():find("multipart/form-data", 1, true) then
    boundary = kind:match('[bB][oO][uU][nN][dD][aA][rR][yY]="([^"]+)"') or kind:match("[bB][oO][uU][nN][dD][aA][rR][yY]=([^;%s]+)")
  end
  if boundary then edits, model, reason = read_form(s, boundary) end
  if edits then return edits, model end
  return nil, nil, reason or "The body is neither a JSON object nor a form that can be read", reason ~= nil
end

local function refuse(handle, message)
  local shape = '{"error":{"message":"%s","type":"invalid_request_error","param":null,"code":"invalid_request"}}'
  handle:respond({[":status"] = "400", ["content-type"] = "application/json"}, shape:format(message))
end

-- A WebSocket has no body to wait for: its model is in the query of its path.
local function upgrade(handle)
  local headers = handle:headers()
  -- An engine that overlooks the upgrade would take what follows for the body of a request.
  if headers:get(":method") ~= "GET" then return refuse(handle, "A WebSocket opens with GET") end
  local named = (headers:get(":path") or ""):match("[?&]model=([^&]*)")
  local model = (named or ""):gsub("+", " "):gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
  local cluster = CONFIG.clusters[model]
  if not cluster and model ~= "" and not headers:get(CONFIG.destination) then
    handle:streamInfo():dynamicMetadata():set("envoy.lb", CONFIG.listed, model)
  end
  if not cluster or headers:get(CONFIG.destination) then return end
  headers:replace("x-fairlead-cluster", cluster)
  if CONFIG.rewrites[cluster] then headers:replace("x-fairlead-model-spans", "query") end
  handle:clearRouteCache()
end

function envoy_on_request(handle)
  if CONFIG.upgrades then return upgrade(handle) end
  local body = handle:body()
  if not body or body:length() == 0 then return end
  local headers = handle:headers()
  -- An error here must not let the request pass as it is, as Envoy would do.
  local ran, edits, model, reason, of_all = pcall(function()
    local s = body:getBytes(0, body:length())
    local edits, model, reason, of_all = read(s, headers)
    if not edits then return nil, nil, reason, of_all end
    local cluster = nil
    if model and not headers:get(CONFIG.destination) then
      cluster = CONFIG.clusters[model]
      -- Among all engines those that list it come first: discovery may know it while the configuration does not.
      if not cluster then handle:streamInfo():dynamicMetadata():set("envoy.lb", CONFIG.listed, model) end
    end
    local changed, spans = s, ""
    if #edits > 0 then changed, spans = edited(s, edits) end
    if changed ~= s then
      body:setBytes(changed)
      headers:replace("content-length", tostring(#changed))
    end
    if cluster then
      headers:replace("x-fairlead-cluster", cluster)
      if CONFIG.rewrites[cluster] then
        headers:replace("x-fairlead-model-spans", spans)
        if s:match("^[ \t\r\n]*{") then headers:replace("x-fairlead-model-quoted", "1") end
      end
      handle:clearRouteCache()
    end
    return edits, model, nil
  end)
  if not ran then
    handle:logErr("fairlead: " .. tostring(edits))
    refuse(handle, "The body cannot be read by this gateway now; try again")
  elseif not edits and (of_all or not CONFIG.trusts_clients) then
    refuse(handle, reason)
  end
end

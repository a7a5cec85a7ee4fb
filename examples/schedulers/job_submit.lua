-- Slurm's job_submit/lua plugin: a planning service chooses the size and layout of a job.
--
-- A line of the batch script says what is asked, as for slurm_submit.py beside this file:
--
--     #PLAN model=llama3-70b cluster=h100-x512 framework=megatron pins.tp=8
--
-- Nodes, GPUs and tasks of the job become those of the best plan, whatever --nodes says, and its
-- layout goes into the environment: PLAN_TP, PLAN_PP, PLAN_STAGE_LAYERS, ... What does not fit is
-- refused with what would help. Jobs without the line pass as they are.
--
-- JobSubmitPlugins=lua in slurm.conf, this file as job_submit.lua beside it. curl makes the call,
-- set up by /etc/slurm/planner.curl (mode 600), so that no token stands here:
--
--     url = "http://planner.example:8642/v1/plans:solve"
--     header = "Authorization: Bearer TOKEN"
--     header = "Prefer: wait=2"
--     max-time = 3
--
-- slurmctld waits while a job is looked at: keep both times short.

local CONFIG = os.getenv("PLANNER_CURL_CONFIG") or "/etc/slurm/planner.curl"
local MARK = "#PLAN "
local MOST_HELP = 3
local NOT_SET = 65534 -- Slurm's NO_VAL16

-- GPUs are gres:gpu:8 up to Slurm 23.02, and gres/gpu:8 from 23.11 on; each refuses the other.
-- The release is that of the program that runs this: the parent of the shell.
local function gpu_prefix()
  local pipe = io.popen("/proc/$PPID/exe -V 2>/dev/null")
  local major, minor = pipe:read("*a"):match("^slurm%S*%s+(%d+)%.(%d+)")
  pipe:close()
  local is_old = major and tonumber(major) * 100 + tonumber(minor) < 2311
  return is_old and "gres:gpu:" or "gres/gpu:"
end

local GPUS = gpu_prefix()

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\" }

local function quoted(text)
  local plain = text:gsub('[%c"\\]', function(c)
    return ESCAPES[c] or string.format("\\u%04x", c:byte())
  end)
  return '"' .. plain .. '"'
end

local function object(fields)
  local parts = {}
  for _, field in ipairs(fields) do
    parts[#parts + 1] = quoted(field[1]) .. ": " .. field[2]
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- The request that a line of the script makes: fields of the call, paths in the files, pins.
local function question(line)
  local fields, paths, pins = {}, {}, {}
  for name, value in line:sub(#MARK + 1):gmatch("([^%s=]+)=(%S+)") do
    if name:sub(1, 5) == "pins." then
      pins[#pins + 1] = { name:sub(6), quoted(value) }
    else
      local into = name:find(".", 1, true) and paths or fields
      into[#into + 1] = { name, quoted(value) }
    end
  end
  fields[#fields + 1] = { "top", "1" }
  fields[#fields + 1] = { "set", object(paths) }
  fields[#fields + 1] = { "pins", object(pins) }
  return object(fields)
end

local LITERALS = { ["true"] = true, ["false"] = false }
local PLAIN = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
local decoded

local function decoded_text(text, at)
  local parts = {}
  while true do
    local stop = text:find('["\\]', at)
    parts[#parts + 1] = text:sub(at, stop - 1)
    if text:sub(stop, stop) == '"' then
      return table.concat(parts), stop + 1
    end
    local mark = text:sub(stop + 1, stop + 1)
    if mark == "u" then
      parts[#parts + 1], at = "?", stop + 6
    else
      parts[#parts + 1], at = PLAIN[mark] or mark, stop + 2
    end
  end
end

local function decoded_items(text, at, close, add)
  at = text:find("%S", at)
  while text:sub(at, at) ~= close do
    at = text:find("%S", add(at))
    if text:sub(at, at) == "," then
      at = text:find("%S", at + 1)
    end
  end
  return at + 1
end

-- A value of JSON that the service wrote, and where it ends; null is nil.
decoded = function(text, at)
  at = text:find("%S", at)
  local first, value = text:sub(at, at), {}
  if first == '"' then
    return decoded_text(text, at + 1)
  elseif first == "[" then
    local n = 0
    at = decoded_items(text, at + 1, "]", function(place)
      n = n + 1
      value[n], place = decoded(text, place)
      return place
    end)
    return value, at
  elseif first == "{" then
    at = decoded_items(text, at + 1, "}", function(place)
      local key
      key, place = decoded_text(text, place + 1)
      value[key], place = decoded(text, text:find(":", place, true) + 1)
      return place
    end)
    return value, at
  end
  local word = text:match("^[%w%.%+%-]+", at)
  return (LITERALS[word] == nil and tonumber(word)) or LITERALS[word], at + #word
end

-- The body and the status of the service's answer; nil where nobody answered.
local function asked(body)
  local name = os.tmpname()
  local file = assert(io.open(name, "w"))
  file:write(body)
  file:close()
  -- No text of the user is part of the command: it is in the file.
  local pipe = io.popen(
    "curl --silent --config '" .. CONFIG .. "' --header 'Content-Type: application/json'"
      .. " --data-binary @" .. name .. " --write-out '\\n%{http_code}'"
  )
  local output = pipe:read("*a")
  pipe:close()
  os.remove(name)
  local answer, status = output:match("^(.*)\n(%d+)$")
  return answer, tonumber(status)
end

local function shown(value)
  if type(value) == "table" then
    local parts = {}
    for i, item in ipairs(value) do
      parts[i] = shown(item)
    end
    return table.concat(parts, ",")
  end
  if type(value) == "number" and value == math.floor(value) then
    return string.format("%d", value)
  end
  return tostring(value)
end

local function per_node(answer, plan)
  for _, pool in ipairs(answer.inputs.cluster.pools) do
    if pool.name == plan.pool then
      return math.min(pool.accelerators_per_node, plan.layout.n_devices)
    end
  end
end

local function apply(job_desc, answer)
  local plan = answer.plans[1]
  local devices = per_node(answer, plan)
  local nodes = math.ceil(plan.layout.n_devices / devices)
  job_desc.min_nodes, job_desc.max_nodes = nodes, nodes
  job_desc.ntasks_per_node, job_desc.num_tasks = 1, nodes
  -- Of --nodes sbatch makes as many processors too, which the nodes of the plan need not have.
  local per_task = job_desc.cpus_per_task
  local is_set = per_task ~= nil and per_task > 0 and per_task < NOT_SET
  job_desc.min_cpus = nodes * (is_set and math.floor(per_task) or 1)
  job_desc.tres_per_node = GPUS .. shown(devices)
  job_desc.comment = "planner:" .. plan.plan_id
  for axis, value in pairs(plan.layout) do
    job_desc.environment["PLAN_" .. axis:upper()] = shown(value)
  end
  job_desc.environment.PLAN_ID = plan.plan_id
  job_desc.environment.PLAN_PRECISION = plan.precision
end

local function refused(text)
  slurm.log_user("planner: %s", text)
  return slurm.ERROR
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local script = job_desc.script
  local line = script and ("\n" .. script):match("\n(" .. MARK .. "[^\n]*)")
  if not line then
    return slurm.SUCCESS
  end
  local body, status = asked(question(line))
  if not status or status == 0 then
    return refused("no planning service answered; without the line #PLAN the job is submitted")
  end
  local answer = decoded(body, 1)
  if status ~= 200 then
    return refused(answer.detail or ("the service answered " .. shown(status)))
  end
  if not answer.plans[1] then
    local changes = {}
    for i = 1, math.min(MOST_HELP, #answer.relaxations) do
      changes[i] = answer.relaxations[i].change
    end
    return refused("nothing fits; what would help: " .. table.concat(changes, "; "))
  end
  apply(job_desc, answer)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS

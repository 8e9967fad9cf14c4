// A fencepost worker in JavaScript, to run and to read: docs/protocol.md says why each frame is sent.
//
//     node examples/worker.mjs --connect ws://127.0.0.1:7434 --queue emails --types echo,sleep,fail
//
// It needs Node 18 or newer and nothing else. The worker comes first; below it is a small WebSocket client, since
// Node has one of its own only from version 22 on.

import { createHash, randomBytes, randomUUID } from 'node:crypto'
import { request } from 'node:http'
import { parseArgs } from 'node:util'

const FRAME_BYTES = 4 * 1024 * 1024 // the largest message that we take

/** A handler failed. kind is retryable or terminal; retry_after_ms may replace the backoff. */
class Failure extends Error {
  constructor (kind, name, message, more = {}) {
    super(message)
    this.report = { kind, class: name, message, ...more }
  }
}

// Handlers. Each gets the task, a way to report progress and a signal that asks it to stop, and answers with the fields
// of `succeeded`: a value under "json", or base64 under "payload" with its "content_type". A handler may run more than
// once for one task: task.idempotency_key is the same each time.
const handlers = {
  async echo ({ json, payload, content_type }) {
    return { json, payload, content_type }
  },
  async sleep (task, progress, signal) {
    progress('asleep')
    await pause(task.json.ms, signal)
    return { json: { slept: task.json.ms, attempt: task.attempt } }
  },
  async fail (task) {
    throw new Failure(task.json.kind, 'example', 'The payload asks for it.')
  }
}

class Worker {
  instance = randomUUID() // new at every start of this process
  held = new Map() // token → task id, of all that we answer for: running, or finished without an ack
  running = new Map() // token → what aborts its handler
  unacked = new Map() // token → its result
  limits = {}
  socket = null
  draining = false

  constructor (options) {
    this.options = options
  }

  async run () {
    for (let turn = 0, wait = 100; !this.isDone(); turn++) {
      const addresses = this.options.connect // the next time, another replica
      try {
        const socket = await WebSocket.connect(`${addresses[turn % addresses.length]}/v1/workers`)
        try {
          if (!await this.register(socket)) return 1
          wait = 100
          await this.session(socket)
        } finally {
          this.socket = null
          await socket.close()
        }
      } catch (error) {
        console.error('connection lost:', error.message)
      }
      if (!this.isDone()) await pause(wait * (0.5 + Math.random() / 2))
      wait = Math.min(wait * 2, 5000)
    }
    return 0
  }

  isDone () {
    return this.draining && this.held.size === 0
  }

  /** Says who we are and which tasks we still have; the answer is welcome or denied. False where that is final. */
  async register (socket) {
    const { identity, namespace, queue, types, slots } = this.options
    socket.send(JSON.stringify({
      register: {
        protocol: 1,
        identity,
        namespaces: [namespace],
        task_queue: queue,
        task_types: types.split(','),
        slots: Number(slots),
        max_frame_bytes: String(FRAME_BYTES),
        instance: this.instance,
        resume: [...this.held].map(([token, task_id]) => ({ task_id, token }))
      }
    }))
    const { denied, welcome } = JSON.parse(await socket.receive(20_000))
    if (denied) {
      console.error('denied:', denied.message)
      if (denied.final) return false
      throw new Error('denied for now')
    }
    this.limits = welcome
    for (const token of welcome.abandoned ?? []) this.forget(token) // they are somebody else's by now
    console.log('welcome', welcome.worker_id)
    return true
  }

  /** One connection, until it ends, the dispatcher sends us away, or we have drained. */
  async session (socket) {
    this.socket = socket
    for (const token of this.unacked.keys()) this.report(token)
    if (this.draining) this.drain()
    const silence = Number(this.limits.silence_window_ms)
    while (!this.isDone()) {
      const text = await socket.receive(silence)
      if (text === null) return // closed by us, with nothing left
      // JSON.parse rounds large numbers. What needs them exact reads `text` with a parser of its own.
      const frame = JSON.parse(text)
      if (frame.tasks) {
        for (const task of frame.tasks.tasks) this.take(task)
      } else if (frame.acks) { // recorded or superseded, we need not keep it any more
        for (const ack of frame.acks.acks) this.forget(ack.token)
      } else if (frame.cancel) {
        for (const token of frame.cancel.tokens) this.running.get(token)?.abort()
      } else if (frame.ping) {
        this.send({ pong: frame.ping })
      } else if (frame.go_away) {
        return // what runs goes on; we name it to whoever lets us in next
      }
    }
  }

  drain () {
    this.draining = true
    this.send({ drain: {} })
    if (this.isDone()) this.socket?.close()
  }

  take (task) {
    const { token, task_type } = task
    const refuse = reason => {
      console.log('refused', task.task_id)
      this.send({ refused: { tokens: [token], reason } })
    }
    if (this.draining) return refuse('draining')
    if (!Object.hasOwn(handlers, task_type)) return refuse('unknown_type')
    if (this.running.size >= this.options.slots) return refuse('no_slot')
    this.held.set(token, task.task_id)
    this.running.set(token, new AbortController())
    console.log('accepted', task.task_id)
    this.send({ accepted: { tokens: [token] } })
    this.handle(task)
  }

  /** Runs the handler, and keeps what came of it until it is acked. */
  async handle (task) {
    const { token } = task
    const abort = this.running.get(token)
    let outcome
    try {
      const progress = text => this.send({ progress: { token, text } })
      outcome = { succeeded: await handlers[task.task_type](task, progress, abort.signal) }
      // A message above the limit would end the connection, again and again.
      if (Buffer.byteLength(JSON.stringify(outcome)) > Number(this.limits.max_frame_bytes) - 1024) {
        throw new Failure('terminal', 'result_too_large', 'The result is above the limit.')
      }
    } catch (error) {
      const kind = abort.signal.aborted ? 'cancelled' : 'retryable'
      outcome = { failed: error.report ?? { kind, class: error.name, message: error.message } }
    }
    if (!this.running.delete(token)) return // abandoned meanwhile
    this.unacked.set(token, { token, ...outcome })
    this.report(token)
  }

  report (token) {
    this.send({ results: { results: [this.unacked.get(token)] } })
  }

  forget (token) {
    this.held.delete(token)
    this.unacked.delete(token)
    this.running.get(token)?.abort()
    this.running.delete(token)
  }

  /** Without a connection nothing is lost: results are sent again in the next session. */
  send (frame) {
    this.socket?.send(JSON.stringify(frame))
  }
}

/** Waits, or throws once the signal fires. */
function pause (ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms)
    signal?.addEventListener('abort', () => {
      clearTimeout(timer)
      reject(new Error('Asked to stop.'))
    })
  })
}

/** As much of RFC 6455 as text messages need. */
class WebSocket {
  texts = [] // come in and not received yet; null marks the end
  waiting = null
  parts = []
  rest = Buffer.alloc(0)

  static connect (address) {
    const key = randomBytes(16).toString('base64')
    const accept = createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64')
    return new Promise((resolve, reject) => {
      const upgrade = request(address.replace(/^ws/, 'http'), {
        headers: { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': key },
        timeout: 10_000
      })
      upgrade.on('error', reject)
      upgrade.on('timeout', () => upgrade.destroy(new Error('no answer')))
      upgrade.on('response', answer => upgrade.destroy(new Error(`the answer is ${answer.statusCode}`)))
      upgrade.on('upgrade', (answer, stream, head) => {
        if (answer.headers['sec-websocket-accept'] === accept) return resolve(new WebSocket(stream, head))
        upgrade.destroy(new Error('this is no WebSocket'))
      })
      upgrade.end()
    })
  }

  constructor (stream, head) {
    this.stream = stream
    stream.setTimeout(0)
    stream.setNoDelay(true)
    stream.on('data', bytes => this.read(bytes))
    stream.on('error', () => {})
    stream.on('close', () => this.deliver(null))
    this.read(head)
  }

  send (text) {
    this.write(1, Buffer.from(text))
  }

  /** The next message; null where the connection was closed from here. */
  async receive (ms) {
    if (this.texts.length === 0) {
      await new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error('nothing but silence')), ms)
        this.waiting = () => { clearTimeout(timer); resolve() }
      })
    }
    if (this.texts[0] !== null) return this.texts.shift()
    if (this.wanted) return null
    throw new Error(this.reason ?? 'the connection ended')
  }

  /** Says goodbye, and gives the other end a second to do so too. */
  async close () {
    this.wanted = true
    this.goodbye(Buffer.from([3, 232])) // 1000: normal
    const timer = setTimeout(() => this.stream.destroy(), 1000)
    if (!this.stream.closed) await new Promise(resolve => this.stream.once('close', resolve))
    clearTimeout(timer)
  }

  goodbye (body) {
    this.write(8, body)
    this.closing = true // nothing may follow it
  }

  write (kind, body) {
    if (this.closing || this.stream.destroyed) return
    const size = body.length < 126 ? 2 : body.length < 65536 ? 4 : 10
    const head = Buffer.alloc(size + 4)
    head[0] = 0x80 | kind
    head[1] = 0x80 | (size === 2 ? body.length : size === 4 ? 126 : 127)
    if (size === 4) head.writeUInt16BE(body.length, 2)
    if (size === 10) head.writeBigUInt64BE(BigInt(body.length), 2)
    const mask = randomBytes(4) // clients mask what they send
    mask.copy(head, size)
    this.stream.write(Buffer.concat([head, body.map((byte, at) => byte ^ mask[at & 3])]))
  }

  read (bytes) {
    this.rest = Buffer.concat([this.rest, bytes])
    while (this.rest.length >= 2) {
      const short = this.rest[1] & 0x7f
      const size = short < 126 ? 2 : short === 126 ? 4 : 10
      if (this.rest.length < size) return
      const length = short < 126 ? short : short === 126 ? this.rest.readUInt16BE(2) : Number(this.rest.readBigUInt64BE(2))
      if (length > FRAME_BYTES) return this.stream.destroy()
      if (this.rest.length < size + length) return
      const [first, body] = [this.rest[0], this.rest.subarray(size, size + length)]
      this.rest = this.rest.subarray(size + length)
      this.take(first & 0x0f, (first & 0x80) !== 0, body)
    }
  }

  take (kind, isLast, body) {
    if (kind === 8) {
      this.reason ??= `closed with ${body.length >= 2 ? body.readUInt16BE(0) : 'no code'}: ${body.subarray(2)}`
      this.goodbye(body.subarray(0, 2))
      this.stream.end()
    } else if (kind === 9) {
      this.write(10, body)
    } else if (kind < 3) {
      this.parts.push(body)
      if (isLast) this.deliver(Buffer.concat(this.parts.splice(0)).toString())
    }
  }

  deliver (text) {
    this.texts.push(text)
    this.waiting?.()
    this.waiting = null
  }
}

const { values } = parseArgs({
  options: {
    connect: { type: 'string', multiple: true },
    queue: { type: 'string' },
    types: { type: 'string', default: 'echo,sleep,fail' },
    namespace: { type: 'string', default: 'default' },
    slots: { type: 'string', default: '4' },
    identity: { type: 'string', default: `worker.mjs-${process.pid}` }
  }
})
const worker = new Worker(values)
for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => worker.drain())
process.exitCode = await worker.run()
